"""What can go wrong, grouped by what the caller should do about it.

    TieredError
      UnavailableError            it did not happen and never will: retry
        LeaseLostError            ... because the lease of the change ended
        CancelledElsewhereError   ... because what was awaited was cancelled, and this task was not
        ClockBehindError          ... because this machine's clock is behind what the store has seen
      UnconfirmedError            between a backend and the store: sent, never answered
      CorruptRecordError          stored bytes break the format: an operator must look
      InvalidRequestError         fix the call
        ConfigurationError        fix the settings, the schema or the directory

The store adds its own to this tree (`tiered.errors`). Every one is constructed with the sentence that
a person will read; each says what is known after it.
"""

from __future__ import annotations


class TieredError(Exception):
    """Root of every error this project raises on purpose."""


class UnavailableError(TieredError):
    """The operation did not take effect and never will; trying again is safe."""


class LeaseLostError(UnavailableError):
    """The lease of this change ended, so it was abandoned without effect; trying again is safe."""


class CancelledElsewhereError(UnavailableError):
    """Something that was awaited was cancelled, though nobody asked for the end of this task. Nothing happened."""


class ClockBehindError(UnavailableError):
    """The change was made before changes that the store has forgotten already, by a clock that is behind; nothing was written.

    It works again when the clock is right.
    """


class UnconfirmedError(TieredError):
    """A request was sent and its answer never came: it took effect, or will later, or never.

    Raised by backends and logs only. The store repeats what is idempotent and settles what is not, so
    its callers never see this one.
    """


class CorruptRecordError(TieredError):
    """Stored bytes break the format. Nothing is guessed and nothing is deleted."""


class InvalidRequestError(TieredError, ValueError):
    """The call itself is wrong; nothing was sent. The message names the value and the limit."""


class ConfigurationError(InvalidRequestError):
    """The settings, the schema or the directory are wrong. The message says what to change."""
