"""What the demo is told, where a run of it keeps everything, and the stage it plays on: the backend and its settings.

    Stage    root: tiered.yaml, journal/, log/      everybody but the stage knows the backend by tiered.yaml alone
      EmbeddedStage        SQLite and files below `store/`
      EmulatorStage        `emulators.demo.emulators`: Bigtable and GCS, services that can be frozen and cut off
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

from changelog.base.errors import InvalidRequestError
from emulators.demo.check import Stored
from emulators.demo.files import StoredFiles
from emulators.demo.load import INLINE_BYTES_MAX

BACKENDS = ("embedded", "emulators")
LIMITS = {"writers": (1, 64), "daemons": (1, 16), "seconds": (1, 86_400), "objects": (1, 100_000)}
EXPIRY_S = 1.0

# A daemon that is killed here on purpose says nothing of the entry it held: hence the many attempts.
_SETTINGS = {
    "inline_bytes_max": INLINE_BYTES_MAX,
    "store": {"answer_budget_s": 10, "cleanup_budget_s": 5, "drain_budget_s": 4},
    "lease": {"heartbeat_interval_s": 0.3, "expiry_s": EXPIRY_S},
    "recovery": {
        "idle_s": 0.3, "collect_every_s": 1, "attempts_max": 50, "attempt_budget_s": 10, "backoff_max_s": 1, "rate_per_s": 500,
        "shutdown_budget_s": 3,
    },
}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """How much of everything. `directory` must be new or empty, and is kept; unset: a temporary one."""

    writers: int = 4
    daemons: int = 2
    seconds: float = 30.0
    seed: int | None = None
    objects: int = 200
    directory: Path | None = None
    unfenced: bool = False
    backend: str = "embedded"
    audit: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidRequestError(f"the demo cannot run with {name} = {value}: give {least} to {most:,}")
        if self.backend not in BACKENDS:
            raise InvalidRequestError(f"the demo does not run on {self.backend!r}: use {' or '.join(BACKENDS)}")
        if self.directory is not None and self.directory.exists() and not _is_empty(self.directory):
            raise InvalidRequestError(
                f"{self.directory} is not an empty directory, and the demo must explain every byte that it finds there: name a new one"
            )


@dataclass(frozen=True, slots=True)
class Service:
    """A server that everybody's requests go to. Each trouble it can get into has a beginning and an end (`emulators.demo.weather`)."""

    name: str
    freeze: Callable[[], None]
    thaw: Callable[[], None]
    stall: Callable[[], None]
    release: Callable[[], None]
    cut: Callable[[], None]
    mend: Callable[[], None]


class Stage(ABC):
    """Entered, it stands, with its settings in `config`; left, nothing of it runs any more."""

    backend: str
    stored: Stored
    services: Sequence[Service] = ()
    pause_s = (0.2, 0.6)
    """Between two processes that are killed or stopped, at least and at most, in seconds."""
    rest_s = 0.0
    """A process that went on after it was stopped is left alone for so long, in seconds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "tiered.yaml"
        self.journal = root / "journal"
        self.log = root / "log"
        self._standing = ExitStack()

    def __enter__(self) -> Self:
        for directory in (self.root, self.journal, self.log):
            directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as whole:
            whole.push(self._standing)
            # YAML, too.
            self.config.write_text(json.dumps(_merged(_SETTINGS, self._raise()), indent=2), "utf-8")
            whole.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._standing.close()

    @abstractmethod
    def _raise(self) -> Mapping[str, Any]:
        """Starts what has to run, leaves its end to `_standing`, and returns the backend's settings."""

    @abstractmethod
    def introduce(self) -> str:
        """A sentence on what is real here, and what is not."""

    @abstractmethod
    def farewell(self) -> str:
        """A sentence on what is left of the run, and where."""

    @abstractmethod
    def may_stand_still(self) -> bool:
        """Whether a process that was just stopped may stay so: not if it keeps everybody else from working."""


class EmbeddedStage(Stage):
    backend = "embedded"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
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
        """A process that is stopped inside of an SQLite transaction keeps the file's lock: that is SQLite's nature, and shows nothing."""
        return self.stored.write_lock_is_free()


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both; of a section that both have, both halves."""
    return {**below, **above, **{key: {**below[key], **above[key]} for key in below.keys() & above.keys() if isinstance(below[key], dict)}}


def _is_empty(directory: Path) -> bool:
    return directory.is_dir() and not any(directory.iterdir())
