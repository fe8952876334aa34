"""A plugin of pytest: the fixtures of the contract suites on the tiers of a trial, and the telling of what happens.

`recovery/prove/contracts.py` starts the process in which it is loaded, in a directory that has two files: what is given
(`Given`), and what is told, a line of JSON for each event. Importing it does nothing: `tests/contracts/` uses what it
shares with it.

Two things are done behind an adapter's back. The clock of a service that keeps its own is put forward with that of the
test (`follow`), and bytes that no call of this software writes are put into the changelog (`planted`). Both are known
for this project's own services alone; of another kind, the tests that need them are left out.

*Crash* anywhere: the trial is cleared before the next test. *Failure* to open a tier is that of its test.
"""

from __future__ import annotations

import json
import math
import pickle
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, cast

import hypothesis
import pytest

from changelog.base.errors import ConfigurationError, TieredError
from changelog.log import ChangeLog
from recovery.prove.contracts import EVENTS, GIVEN, Given
from recovery.prove.writer import end_with_parent
from tiered.buckets.owned import NAME_BYTES_MAX
from tiered.kinds import chosen
from tiered.kinds.bucket import BucketKind
from tiered.kinds.kind import OpenRows, TrialKind
from tiered.services.backends import HighVolumeBackend, LongTermBackend
from tiered.services.capabilities import PartUploads
from tiered.settings import Settings
from tiered.testing.clock import Clock
from tiered.testing.contracts.changelog import Plant
from tiered.testing.contracts.parts import PartsTier

_REVISION_CHARS = 37
GRACE_S = 10.0
"""Longer than whoever started this process waits before he ends it."""


# --- the process -------------------------------------------------------------------------------------


@cache
def _given(place: Path) -> Given:
    given = pickle.loads((place / GIVEN).read_bytes())
    assert isinstance(given, Given)
    return given


def pytest_configure(config: pytest.Config) -> None:
    # Nothing handles the signal, so it ends the process, whatever a test does. Nobody else may be left to do it.
    signal.alarm(math.ceil(_given(config.rootpath).within_s + GRACE_S))
    Thread(target=end_with_parent, daemon=True).start()
    (config.rootpath / GIVEN).unlink()  # it may hold a password, and whoever started this process may be killed
    # The same examples in each run, so that two reports compare, and nothing is kept from one run to the next. One that
    # fails is enough: to look for a smaller one takes hundreds of calls.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("prove", derandomize=True, database=None, deadline=None, phases=phases, report_multiple_bugs=False)
    hypothesis.settings.load_profile("prove")
    config.pluginmanager.register(_Teller(config.rootpath / EVENTS))


class _Teller:
    """Writes each event as soon as it happens: the process may be ended at any moment."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def _tell(self, **event: object) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(event)}\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._tell(**{"is": "collected", "tests": len({_name(item) for item in session.items})})

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        kind = _given(item.config.rootpath).settings.rows_kind
        if "forgetful" in getattr(item, "fixturenames", ()) and kind not in chosen.OWN_ROWS:
            pytest.skip(f"nobody here knows how to put the clock of the kind {kind} forward")

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "setup":
            self._tell(**{"is": "begun", "test": _name(item)})
        if call.excinfo is not None:
            skipped = isinstance(call.excinfo.value, pytest.skip.Exception)
            when = "" if skipped or call.when == "call" else f"{call.when}: "
            self._tell(**{"is": "skipped" if skipped else "failed", "test": _name(item), "why": f"{when}{_why(call.excinfo.value)}"})
        if call.when == "teardown":
            self._tell(**{"is": "ended", "test": _name(item)})


def _name(item: pytest.Item) -> str:
    """Of the function: its cases are one test."""
    return item.name.partition("[")[0]


def _why(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = str(error).partition("\n")[0]
    return said if isinstance(error, AssertionError | pytest.skip.Exception) and said else f"{type(error).__name__}: {said}"


# --- the fixtures ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def trial(pytestconfig: pytest.Config) -> Settings:
    return _given(pytestconfig.rootpath).settings


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def runtime() -> Clock:
    return Clock()


@pytest.fixture
async def opened_rows(trial: Settings, runtime: Clock) -> AsyncIterator[OpenRows]:
    """Empty rows, and an empty changelog."""
    await cast(TrialKind, chosen.rows_kind(trial)).clear(trial, runtime)
    async with _rows(trial, runtime) as opened:
        if trial.postgres is not None and trial.rows_kind == "postgres":
            follow(cast(Any, opened.log)._pool, runtime, trial.postgres.schema_name)
        yield opened


@pytest.fixture
async def high_volume(opened_rows: OpenRows) -> HighVolumeBackend:
    return opened_rows.rows


@pytest.fixture
async def changelog(opened_rows: OpenRows) -> ChangeLog:
    return opened_rows.log


@pytest.fixture
async def long_term(request: pytest.FixtureRequest, trial: Settings, runtime: Clock) -> AsyncIterator[LongTermBackend]:
    kind = chosen.blobs_kind(trial)
    given = request.node.callspec.params.values() if hasattr(request.node, "callspec") else ()
    if isinstance(kind, BucketKind) and are_too_long(given, kind.at(trial).prefix):
        pytest.skip("with the prefix of the trial its name is too long")
    await cast(TrialKind, kind).clear(trial, runtime)
    async with _rows(trial, runtime) as rows, kind.open(trial, runtime, rows, writes=True, verify=False) as blobs:
        made = _noted(blobs) if isinstance(kind, BucketKind) else set()
        yield blobs
        for name in made:
            with suppress(TieredError):  # a name that the service does not take was not taken before, either
                await blobs.delete(name)


@pytest.fixture
async def parts_tier(long_term: LongTermBackend) -> PartsTier:
    if not isinstance(long_term, PartUploads):
        pytest.skip("it takes no uploads in parts")
    return cast(PartsTier, long_term)


@pytest.fixture
def plant(trial: Settings) -> Plant:
    if trial.rows_kind not in chosen.OWN_ROWS:
        pytest.skip(f"nobody here knows how to put bytes into a changelog of the kind {trial.rows_kind}")
    return planted


@asynccontextmanager
async def _rows(trial: Settings, runtime: Clock) -> AsyncIterator[OpenRows]:
    async with chosen.rows_kind(trial).open(trial, runtime, writes=True, verify=False) as opened:
        yield opened


def are_too_long(given: Iterable[object], prefix: str) -> bool:
    """Whether a name that a test is given is too long for a bucket below this prefix."""
    return any(isinstance(each, str) and len((prefix + each).encode()) > NAME_BYTES_MAX - _REVISION_CHARS for each in given)


def _noted(blobs: Any) -> set[str]:
    """The names below which this tier is asked to make blobs from now on.

    A bucket that lists names wrongly is emptied by them: what it does not list would be there in all later tests.
    """
    made: set[str] = set()

    def note(method: str, place: int) -> None:
        make = getattr(blobs, method)

        async def noting(*given: Any) -> Any:
            made.add(given[place])
            return await make(*given)

        setattr(blobs, method, noting)

    for method, place in (("open_upload", 0), ("begin_parts", 0), ("open_copy", 2), ("set_aside", 2), ("bring_back", 2)):
        note(method, place)
    return made


# --- behind the adapters -----------------------------------------------------------------------------


def follow(pool: Any, clock: Clock, schema: str) -> None:
    """From now on the clock of a PostgreSQL schema is as far ahead as the test's."""
    from tiered.postgres.schema import quoted_schema

    told_ns, write = clock.ahead_ns, pool.write

    async def following(doing: str, statement: str, *values: object, may_send: Any = None) -> Any:
        nonlocal told_ns
        if told_ns != clock.ahead_ns:
            told_ns = clock.ahead_ns
            ahead = f"SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + {told_ns // 1_000_000}"
            function = f"FUNCTION {quoted_schema(schema)}.clock_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$ {ahead} $$"
            await write("putting the clock forward", f"CREATE OR REPLACE {function}")
        return await write(doing, statement, *values, may_send=may_send)

    pool.write = following


async def planted(log: Any, key: str, raw: bytes) -> None:
    """Puts bytes into the log that no call of this software writes; beaten just now."""
    now_ms = await log.announce("planter")
    if hasattr(log, "_database"):
        await log._database.write(lambda connection: connection.execute("INSERT INTO changes VALUES (?, ?, ?, NULL)", (key, raw, now_ms)))
    elif hasattr(log, "_pool"):
        schema = log._sql["now_ms"].partition(".")[0].rpartition(" ")[2]
        await log._pool.write("planting", f"INSERT INTO {schema}.entries VALUES ($1, $2, $3, NULL)", key.encode(), raw, now_ms)
    elif hasattr(log, "_table"):
        from changelog.bigtable.channel import set_cell

        # What nobody owns is dated 0 there, by whatever software.
        beaten_us = 0 if b'"owner":""' in raw else now_ms * 1000
        await log._table.mutate(key.encode(), set_cell("fc", b"c", raw, beaten_us))
    else:
        raise ConfigurationError(f"nobody here knows how to put bytes into {type(log).__name__}")
