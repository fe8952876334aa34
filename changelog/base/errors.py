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

The store adds its own errors to this tree (`tiered.errors`). Each error is constructed with the sentence that a person
will read. Each docstring says what is known after it.
"""

from __future__ import annotations

from typing import Self


class TieredError(Exception):
    """Root of every error that this project raises on purpose.

    `code`: what the service called it, a gRPC status such as `RESOURCE_EXHAUSTED` or an HTTP status such as `429`.
    Empty: no service said anything.
    """

    code: str = ""

    heard: bool | None = None
    """What it tells of the service. True: the service answered. False: it was asked nothing. None: it did not answer.
    """

    refused: bool = False
    """Whether a service refuses this, and will until somebody changes something: a right, a key, a clock, a setting."""

    may_pass: bool = False
    """Whether what is refused may be taken again without a hand: a standby is promoted by its cluster."""

    callers_fault: bool = False
    """Whether the call was told no for what the caller did. Nobody is woken for it. A new error is nobody's fault here,
    so it counts as a failure until somebody says otherwise."""

    def coded(self, code: str, *, heard: bool | None = None) -> Self:
        """The same error, with the code of the service, or of what was in its place."""
        self.code, self.heard = code, heard
        return self

    def like(self, error: TieredError) -> Self:
        """The same error, with what another one tells of the service."""
        self.refused, self.may_pass = error.refused, error.may_pass
        return self.coded(error.code, heard=error.heard)

    def refusing(self, *, may_pass: bool = False) -> Self:
        """The same error, of a service that refuses this until somebody changes something."""
        self.refused, self.may_pass = True, may_pass
        return self

    @property
    def is_final(self) -> bool:
        """Whether another attempt would be refused, too. So none is made, and the caller is told at once."""
        return self.refused and not self.may_pass

    def telling(self, *, heard: bool) -> Self:
        """The same error, with what it tells of the service."""
        self.heard = heard
        return self


class UnavailableError(TieredError):
    """The operation did not take effect and never will; trying again is safe."""


class LeaseLostError(UnavailableError):
    """The lease of this change ended, so it was abandoned without effect; trying again is safe."""


class CancelledElsewhereError(UnavailableError):
    """Something that this task awaited was cancelled, although nobody cancelled this task. Nothing happened."""

    callers_fault = True


class ClockBehindError(UnavailableError):
    """Nothing was written: this machine's clock is behind.

    By that clock, the change was made before changes that the store has forgotten already. It works again once the
    clock is right.
    """


class UnconfirmedError(TieredError):
    """A request was sent, and its answer never came. It took effect, or it will later, or it never will.

    Only backends and logs raise it. The store repeats what is safe to repeat and settles the rest, so its callers never
    get this error.
    """


class CorruptRecordError(TieredError):
    """Stored bytes break the format. Nothing is guessed and nothing is deleted."""


class InvalidRequestError(TieredError, ValueError):
    """The call itself is wrong; nothing was sent. The message names the value and the limit."""

    callers_fault = True


class ConfigurationError(InvalidRequestError):
    """The settings, the schema or the directory are wrong. The message says what to change."""

    refused = True
    callers_fault = False


def newer_version(what: str, version: object, reads: str) -> str:
    """Returns the sentence for what newer software has stored. `version`: of that; `reads`: what this one knows."""
    return f"newer software wrote {what}, in version {version}, and this one reads {reads}: install a newer tiered"


def no_credentials(error: Exception) -> ConfigurationError:
    """Returns the error for a process that has no Google credentials. `error`: what Google's library says of that."""
    sentence = str(error).partition("\n")[0].rstrip(".")
    return ConfigurationError(
        "there are no Google credentials: run 'gcloud auth application-default login', or set GOOGLE_APPLICATION_CREDENTIALS to the file "
        f"of a key; for emulators set BIGTABLE_EMULATOR_HOST and STORAGE_EMULATOR_HOST ({sentence})"
    )
