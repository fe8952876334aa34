"""The demo's options, and its stages. A stage is the backend of one run, its settings, and the directory of the run.

    DemoStage              the directory has tiered.yaml, journal/ and log/; only the stage knows the backend, all
                           others read tiered.yaml
      EmbeddedStage        SQLite and files below `store/`
      ServicesStage        services that can be frozen and cut off
        EmulatorStage      Bigtable and GCS (`emulators.py`)
        ServerStage        PostgreSQL and S3, which can also be killed (`servers.py`)
"""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anyio.from_thread import BlockingPortal

from changelog.base.errors import ConfigurationError, InvalidRequestError
from emulators.demo.checking.check import BackendContent
from emulators.demo.checking.stored_files import StoredFiles
from emulators.demo.players.load import INLINE_BYTES_MAX
from emulators.demo.staging.feed_processes import DemoFeed
from tiered.kinds.chosen import provision
from tiered.provision.findings import problems
from tiered.settings import Settings

EMBEDDED, EMULATORS, POSTGRES_S3 = BACKENDS = ("embedded", "emulators", "postgres+s3")
LIMITS = {"writers": (1, 64), "daemons": (1, 16), "seconds": (1, 86_400), "objects": (1, 100_000)}
EXPIRY_S = 1.0
CALL_S = 1.0
PATIENT_S = 30.0
GRACE_S = 8.0
"""In seconds. Longer than a process is stopped, plus the longest delay of its last request."""

# Many attempts: each kill of a daemon uses up an attempt of the entry that it held, and says nothing of the entry.
_SETTINGS = {
    "inline_bytes_max": INLINE_BYTES_MAX,
    "store": {"answer_budget_s": 10, "drain_budget_s": 4},
    "lease": {"expiry_s": EXPIRY_S},
    "recovery": {
        "idle_s": 0.1, "attempts_max": 50, "rate_per_s": 500,
        "shutdown_budget_s": 3,
    },
}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run, and for how long. `directory` must be new or empty, and is kept; None: a temporary one.

    `beside`: `released` or a commit; every other process runs its wheel. None: all run this checkout.

    Raises `InvalidRequestError` if a value is out of its limits or the directory is not empty.
    """

    writers: int = 4
    daemons: int = 2
    seconds: float = 20.0
    seed: int | None = None
    objects: int = 200
    directory: Path | None = None
    unfenced: bool = False
    backend: str = EMBEDDED
    audit: bool = False
    soak: bool = False
    beside: str | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidRequestError(f"the demo cannot run with {name} = {value}: give {least} to {most:,}")
        if self.backend not in BACKENDS:
            raise InvalidRequestError(f"the demo does not run on {self.backend!r}: use {', '.join(BACKENDS)}")
        if self.soak and self.unfenced:
            raise InvalidRequestError("the demo cannot run with both soak and unfenced: the soak judges the product, so leave one out")
        if self.beside is not None and self.unfenced:
            raise InvalidRequestError("the demo cannot run with both beside and unfenced: only the product has another version")
        if self.directory is not None and self.directory.exists() and not _is_empty(self.directory):
            raise InvalidRequestError(
                f"{self.directory} is not an empty directory, and the demo must explain every byte that it finds there: name a new one"
            )


@dataclass(frozen=True, slots=True)
class Service:
    """A server that all requests go to, and how each kind of its faults begins and ends (`weather.py`).

    `crash`, `restart`: None if what it keeps is in memory, and would be gone.
    """

    name: str
    freeze: Callable[[], None]
    thaw: Callable[[], None]
    stall: Callable[[], None]
    release: Callable[[], None]
    cut: Callable[[], None]
    mend: Callable[[], None]
    crash: Callable[[], None] | None = None
    restart: Callable[[], None] | None = None


class DemoStage(ABC):
    """A context: inside it the backend runs, and `config` has its settings; after it, nothing of it runs any more."""

    backend: str
    stored: BackendContent
    services: Sequence[Service] = ()
    pause_s = (0.2, 0.6)
    """The least and the greatest time between two kills or stops, in seconds."""
    rest_s = 0.0
    """After a stopped process goes on, it is not stopped again for so many seconds."""

    def __init__(self, root: Path, *, with_feed: bool = False) -> None:
        """`with_feed`: a change feed is configured, and `feed` has its processes."""
        self.root = root
        self.config = root / "tiered.yaml"
        self.journal = root / "journal"
        self.log = root / "log"
        self.feed = DemoFeed(root, self.config, self.log, networked=self.backend != EMBEDDED) if with_feed else None
        self._standing = ExitStack()

    def __enter__(self) -> Self:
        for directory in (self.root, self.journal, self.log):
            directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as whole:
            whole.push(self._standing)
            # JSON is YAML, too.
            settings = _merged(_SETTINGS, self._raise()) | ({"feed": self.feed.settings} if self.feed else {})
            self.config.write_text(json.dumps(settings, indent=2), "utf-8")
            whole.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._standing.close()

    @abstractmethod
    def _raise(self) -> Mapping[str, Any]:
        """Starts the backend, registers its end with `_standing`, and returns the backend's settings."""

    @abstractmethod
    def introduce(self) -> str:
        """Returns a sentence that says what is real here, and what is not."""

    @abstractmethod
    def farewell(self) -> str:
        """Returns a sentence that says what is left of the run, and where."""

    @abstractmethod
    def may_stand_still(self) -> bool:
        """Returns whether a process that was just stopped may stay stopped: not if it blocks all the others."""


class ServicesStage(DemoStage):
    """A backend in services that can fail. What they need is provisioned.

    A frozen server keeps the requests that it was sent, so a request may take effect after it has timed out. Therefore
    a call's time limit (CALL_S) is shorter than a freeze, and the entry of an aborted upload is kept until nothing of
    it can arrive any more (GRACE_S).
    """

    pause_s = (0.4, 1.2)
    rest_s = GRACE_S
    are: str
    """What the services are, and what is done to them."""
    keepers: str

    def _provisioned(self, portal: BlockingPortal, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the settings with what recovery must know. Raises `ConfigurationError`."""
        # Nothing fails yet, so a busy machine has time.
        patient = {name: {**each, "timeout_s": PATIENT_S} if isinstance(each, dict) else each for name, each in settings.items()}
        if wrong := problems(portal.call(provision, Settings(**patient))):
            raise ConfigurationError("\n".join(wrong))
        return {**settings, "recovery": {"late_upload_grace_s": GRACE_S}}

    def introduce(self) -> str:
        return f"Real processes and signals, {self.are} now and then; logs in {self.root}"

    def farewell(self) -> str:
        return f"Logs and journals are in {shlex.quote(str(self.root))}; what was stored is gone with the {self.keepers}."

    def may_stand_still(self) -> bool:
        """Returns True: a process that is stopped holds no lock, because a transaction is one call."""
        return True


class EmbeddedStage(DemoStage):
    backend = EMBEDDED

    def __init__(self, root: Path, *, with_feed: bool = False) -> None:
        super().__init__(root, with_feed=with_feed)
        self.store = root / "store"
        self.stored: StoredFiles = StoredFiles(self.store)

    def _raise(self) -> Mapping[str, Any]:
        self.store.mkdir(exist_ok=True)
        return {"directory": str(self.store), "changelog": "sqlite"}

    def introduce(self) -> str:
        return f"Real processes, files and signals in {self.root}"

    def farewell(self) -> str:
        return f"Look at the store with: tiered --config {shlex.quote(str(self.config))} ls    (logs and journals are beside it)"

    def may_stand_still(self) -> bool:
        """Returns whether SQLite's write lock is free. A process that is stopped in a transaction keeps the lock.

        It would block all others, which shows how SQLite works and nothing about the store.
        """
        return self.stored.write_lock_is_free()


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns both together. A section that both have is merged as well."""
    return {**below, **above, **{key: {**below[key], **above[key]} for key in below.keys() & above.keys() if isinstance(below[key], dict)}}


def _is_empty(directory: Path) -> bool:
    return directory.is_dir() and not any(directory.iterdir())
