"""The only error that is the audit's own. All others are the store's."""

from __future__ import annotations

from changelog.base.errors import TieredError


class AuditInterruptedError(TieredError):
    """A signal ended the run. The ranges that are done stay done. The same call goes on with the others."""
