"""What a kind of tier must do: open it, name it, look at it, and make what it needs.

A kind is an object without state. To name a tier (`address`, `inputs`, `place`) imports no package of its service. All
else may raise `ConfigurationError`, which says what to install or to change, and `UnavailableError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from anyio import get_cancelled_exc_class

from changelog.base.capability import Capability
from changelog.base.errors import ConfigurationError
from changelog.base.extras import installing
from changelog.base.runtime import Runtime
from changelog.log import ChangeLog
from tiered.provision.findings import Notice, Provisioning
from tiered.provision.probes import ProbeOutcome, RequestSizes
from tiered.services.backends import HighVolumeBackend, LongTermBackend
from tiered.settings import Settings


@dataclass(frozen=True, slots=True)
class OpenRows:
    """Rows that are open, and the changelog beside them.

    `owner`: how a bucket names the store whose blobs it holds. `inline_write_s_max`: as in `Tiers`. `local`: the rows
    are in a file of this machine.
    """

    rows: HighVolumeBackend
    log: ChangeLog
    owner: str
    inline_write_s_max: float = math.inf
    local: bool = False


class RowsKind(Protocol):
    """What holds rows, and the changelog."""

    def address(self, settings: Settings) -> str:
        """Where the rows are, without a secret, such as `bigtable:project/instance/table`. It is stored in feeds."""

    def inputs(self, settings: Settings) -> Mapping[str, str]:
        """What an audit compares, by name, such as `table`. A run goes on only with the same inputs."""

    def open(self, settings: Settings, runtime: Runtime, *, writes: bool, verify: bool) -> AbstractAsyncContextManager[OpenRows]:
        """Opens them. `writes` False: what only writers need may be missing. `verify` False: nothing is looked at."""

    async def owner(self, settings: Settings, runtime: Runtime) -> str:
        """How a bucket names the store whose blobs it holds. `UnavailableError`: the service did not tell."""

    async def inspect(self, settings: Settings, runtime: Runtime) -> list[Notice]:
        """The findings of `tiered check`. Changes nothing that the store sees."""

    async def provision(self, settings: Settings, runtime: Runtime, wanted: Provisioning) -> list[Notice]:
        """Creates what is missing, and mends what destroys data. It may be repeated."""


@runtime_checkable
class SharedFormat(Capability, Protocol):
    """A `RowsKind` whose rows other software writes, too, at other times."""

    async def hand_back(self, settings: Settings, runtime: Runtime, *, dry_run: bool) -> list[Notice]:
        """Removes what that software does not know, and keeps all stores of ours from writing. It may be repeated."""


TRIAL_TIME_DIGITS = 12


@dataclass(frozen=True, slots=True)
class TrialNeeds:
    """Each the rest of a sentence. `makes`: what is there for a while, without a name of the user's."""

    makes: str
    rights: str


@runtime_checkable
class TrialKind(Capability, Protocol):
    """A kind of rows or blobs that can hold a second store beside that of the settings for a while.

    A *trial* is such a store, in names that nobody else uses. Its name is `TRIAL_DIGITS` hexadecimal digits: when it
    was begun (Unix ms) in the first `TRIAL_TIME_DIGITS`, then chance. `tiered provision` makes it, with the settings
    of `beside`.
    """

    def beside(self, settings: Settings, trial: str) -> Settings:
        """The settings, with the place of the trial in what this tier goes by."""

    async def trials(self, settings: Settings, runtime: Runtime) -> Sequence[str]:
        """The trials that are there beside the store of these settings, also those that somebody was killed in."""

    async def clear(self, settings: Settings, runtime: Runtime) -> None:
        """Removes what is in the trial, which stays as it was made. `settings`: of the trial. Nobody has it open."""

    async def remove(self, settings: Settings, runtime: Runtime, trial: str) -> None:
        """Removes the trial and all that is in it. `settings`: of the store, not of the trial. It may be repeated."""

    async def told(self, settings: Settings, runtime: Runtime) -> Mapping[str, str]:
        """What the service tells of itself, such as its version: nothing that somebody has named.

        `UnavailableError`: it tells nothing.
        """

    def trial_needs(self, settings: Settings) -> TrialNeeds:
        """What a trial makes, and which rights that takes."""


@runtime_checkable
class RequestsKind(Capability, Protocol):
    """A kind of blobs whose service is also tried by requests that its adapter never sends, such as a wrong checksum.
    """

    async def try_requests(self, settings: Settings, runtime: Runtime, sizes: RequestSizes) -> list[ProbeOutcome[Any]]:
        """What became of each probe. `settings`: of a trial. Raises `TieredError` if nobody answers."""


@runtime_checkable
class RightsKind(Capability, Protocol):
    """A kind whose service may tell what this identity may do beyond what a store needs."""

    async def excess(self, settings: Settings, runtime: Runtime) -> Sequence[str]:
        """Each the rest of a sentence about this identity, such as "may delete the bucket". It asks, and tries nothing.

        `NotTriedError`: the service does not tell. `settings`: of the store, which may not be there yet.
        """


class BlobsKind(Protocol):
    """What holds blobs."""

    def address(self, settings: Settings) -> str:
        """Where the blobs are, without a secret, such as `gcs:bucket/prefix`. It is stored in feeds."""

    def inputs(self, settings: Settings) -> Mapping[str, str]:
        """As of `RowsKind`."""

    def place(self, settings: Settings) -> str | None:
        """What holds the blobs, as other tools write it, such as `gs://bucket`. None: a directory."""

    def open(
        self, settings: Settings, runtime: Runtime, rows: OpenRows, *, writes: bool, verify: bool
    ) -> AbstractAsyncContextManager[LongTermBackend]:
        """Opens them. The arguments are those of `RowsKind.open`."""

    async def inspect(self, settings: Settings, runtime: Runtime, owner: str | None) -> list[Notice]:
        """As of `RowsKind`. `owner`: of the rows; None: they did not tell it."""

    async def provision(self, settings: Settings, runtime: Runtime, owner: str, wanted: Provisioning) -> list[Notice]:
        """As of `RowsKind`. `owner`: of the rows."""


def needs_asyncio(sentence: str) -> None:
    """Refuses any other event loop. `sentence`: what needs asyncio, and why."""
    if get_cancelled_exc_class().__module__.startswith("trio"):
        raise ConfigurationError(f"{sentence}: run this with anyio.run(main) or asyncio.run(main())")


@contextmanager
def needs_packages(what: str, extra: str) -> Iterator[None]:
    """Says what to install if a package is missing that is imported in this block."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ConfigurationError(f"{what} needs {missing.name}, which is missing: {installing(extra)}") from None
