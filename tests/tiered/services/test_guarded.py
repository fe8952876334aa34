"""The ways to ask a service: which calls are refused while it is away, which are repeated, and what is raised then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from changelog.base.errors import TieredError, UnavailableError, UnconfirmedError
from changelog.base.observe import Observer
from emulators.world.runtime import SimulatedRuntime
from tiered.errors import ServiceAwayError
from tiered.services.backends import Tiers
from tiered.services.breaker import AWAY_AFTER_S
from tiered.services.guarded import GuardedServices
from tiered.settings import StoreSettings
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.rows import MemoryRows

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


@dataclass(frozen=True)
class Way:
    """`sent_while_away`: whether it is; `unconfirmed_is`: what becomes of a call that never gets an answer."""

    name: str
    sent_while_away: bool
    repeats_unconfirmed: bool
    unconfirmed_is: type[TieredError]


WAYS = (
    Way("read", sent_while_away=False, repeats_unconfirmed=True, unconfirmed_is=UnavailableError),
    Way("settle", sent_while_away=True, repeats_unconfirmed=True, unconfirmed_is=UnconfirmedError),
    Way("send", sent_while_away=False, repeats_unconfirmed=False, unconfirmed_is=UnconfirmedError),
    Way("repeat", sent_while_away=False, repeats_unconfirmed=True, unconfirmed_is=UnconfirmedError),
)
EACH_WAY = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)


class FailingRows:
    """A service that fails the first calls with these errors, and then answers with what it was asked for."""

    def __init__(self, *errors: TieredError) -> None:
        runtime = SimulatedRuntime(seed=1)
        tiers = Tiers(MemoryRows(runtime), MemoryBlobs(runtime))
        settings = StoreSettings(answer_budget_s=30.0)
        self.service = GuardedServices(tiers, settings, runtime, "store-1", Observer()).rows
        self.errors, self.calls = list(errors), 0

    async def answer(self, what: str, *, more: str = "") -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return what + more

    async def ask(self, way: Way) -> str:
        return str(await getattr(self.service, way.name)(self.answer, "what", more=" and more"))


@EACH_WAY
async def test_a_call_that_certainly_failed_is_made_again_with_its_arguments(way: Way) -> None:
    asked = FailingRows(UnavailableError("not now"))
    assert await asked.ask(way) == "what and more" and asked.calls == 2


@EACH_WAY
async def test_a_call_that_was_not_answered_is_made_again_only_where_that_does_no_harm(way: Way) -> None:
    asked = FailingRows(UnconfirmedError("no answer"))
    if way.repeats_unconfirmed:
        assert await asked.ask(way) == "what and more" and asked.calls == 2
    else:
        with pytest.raises(UnconfirmedError, match="no answer"):
            await asked.ask(way)
        assert asked.calls == 1


@EACH_WAY
async def test_what_is_never_answered_is_told_as_far_as_it_is_known(way: Way) -> None:
    asked = FailingRows(*(UnconfirmedError("no answer") for _ in range(1000)))
    began_at = anyio.current_time()
    with pytest.raises(TieredError, match="no answer") as told:
        await asked.ask(way)
    assert told.type is way.unconfirmed_is and asked.calls > 0 and anyio.current_time() - began_at <= 30


@EACH_WAY
async def test_a_service_that_is_away_is_sent_only_what_finds_out_or_finishes(way: Way) -> None:
    asked = FailingRows()
    asked.errors = [UnavailableError("down") for _ in range(3)]
    for pause_s in (AWAY_AFTER_S, 1, 0):
        with pytest.raises(UnavailableError, match="down"):
            await asked.service.note(lambda: asked.answer("what"))
        await anyio.sleep(pause_s)
    assert asked.service.away_s is not None and asked.calls == 3
    if way.sent_while_away:
        assert await asked.ask(way) == "what and more" and asked.calls == 4
    else:
        with pytest.raises(ServiceAwayError, match="nothing was sent"):
            await asked.ask(way)
        assert asked.calls == 3
