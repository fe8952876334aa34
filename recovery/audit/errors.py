"""Errors of the audit alone; all others are the store's."""

from __future__ import annotations

from changelog.base.errors import TieredError


class AuditInterruptedError(TieredError):
    """A signal ended the run. What is done is done; the same call goes on with the rest."""
