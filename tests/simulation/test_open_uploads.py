"""What the observer may say of an upload in parts, whose completion was cancelled."""

from __future__ import annotations

from emulators.simulation.minimise import run_uncounted
from emulators.simulation.recipe import Recipe


def test_an_upload_stays_open_when_the_store_of_its_cancelled_completion_closes() -> None:
    """The observer took it for over, as any cancelled write. In this world, another service completes it later."""
    assert run_uncounted(Recipe.of(424546066)).violation is None
