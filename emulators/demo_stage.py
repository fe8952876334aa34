"""What the demo is told, where a run of it keeps everything, and the settings of its store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from changelog.errors import InvalidRequestError
from emulators.demo_load import INLINE_BYTES_MAX

LIMITS = {"writers": (1, 64), "daemons": (1, 16), "seconds": (1, 86_400), "objects": (1, 100_000)}
EXPIRY_S = 1.0

# A daemon that is killed here on purpose says nothing of the entry it held: hence the many attempts.
_CONFIG = {
    "changelog": "sqlite",
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

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidRequestError(f"the demo cannot run with {name} = {value}: give {least} to {most:,}")
        if self.backend != "embedded":
            raise InvalidRequestError(f"the demo does not run on {self.backend!r}: use 'embedded'")
        if self.directory is not None and self.directory.exists() and not _is_empty(self.directory):
            raise InvalidRequestError(
                f"{self.directory} is not an empty directory, and the demo must explain every byte that it finds there: name a new one"
            )


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a run of the demo keeps everything."""

    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def config(self) -> Path:
        return self.root / "tiered.yaml"

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def log(self) -> Path:
        return self.root / "log"

    def set_up(self) -> None:
        for directory in (self.root, self.store, self.journal, self.log):
            directory.mkdir(parents=True, exist_ok=True)
        # YAML, too.
        self.config.write_text(json.dumps({"directory": str(self.store)} | _CONFIG, indent=2), "utf-8")


def _is_empty(directory: Path) -> bool:
    return directory.is_dir() and not any(directory.iterdir())
