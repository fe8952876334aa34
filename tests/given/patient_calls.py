"""Calls to services that freeze and thaw again, on a machine that may be busy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from changelog.base.errors import UnavailableError
from tiered.settings import Settings, load_settings

PATIENT_S = 60.0
SERVICES = ("bigtable", "postgres", "gcs", "s3")


def patient(config: Path) -> Settings:
    """The settings in this file, with more time for each call: where nothing fails, a busy machine is no failure."""
    settings = load_settings(config)
    sections = {name: section for name in SERVICES if (section := getattr(settings, name)) is not None}
    return settings.model_copy(update={
        name: section.model_copy(update={"timeout_s": PATIENT_S}) for name, section in sections.items()
    })  # fmt: skip


async def answers(ask: Callable[[], Awaitable[object]]) -> bool:
    """Whether a service answers in its time. A busy machine may take that, and each connection that was cut off costs a
    call.
    """
    try:
        await ask()
    except UnavailableError:
        return False
    return True
