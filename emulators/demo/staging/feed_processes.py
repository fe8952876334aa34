"""The change feed of a demo: its processes, and the comparison of what they published with the rows at the end.

    f0, f1    `tiered feed run`, the writer of the feed; on the emulators there are two, and one of them waits its turn
    r0        `tiered feed receive`, the second sink, on the emulators only
    v0        `tiered feed follow` of what the receiver keeps, on the emulators only; nobody kills it

Writers and receiver are killed and stopped like the others, past the time after which another writer takes over. When
the writers of the store have finished, `tiered feed run --once` publishes the rest and deletes what waited for it. Then
each place must say of every object what its row says (`emulators.demo.checking.published`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulators.demo.checking.published import PublishedFeed, frontier_of_output, generations, read_folder, read_output
from emulators.ports import free_port

ONCE, FOLLOWER, RECEIVER = "o0", "v0", "r0"
ONCE_S = 90.0
FOLLOW_S = 15.0

SETTINGS: Mapping[str, Any] = {
    "enabled": True, "poll_s": 0.2, "progress_every_s": 0.3, "reconcile_every_s": 4.0, "batch_max": 200,
}
"""A writer that is stopped for 1.5 s loses its turn. Passes over all rows happen several times in a run."""


class DemoFeed:
    """The feed of one run below `root`. `networked`: with a second writer, a receiver and a follower."""

    def __init__(self, root: Path, config: Path, log: Path, *, networked: bool) -> None:
        self.directory, self.received = root / "feed", root / "received"
        self.networked = networked
        self._config = config
        self._log = log
        self._port = free_port() if networked else 0

    @property
    def settings(self) -> dict[str, Any]:
        to = [str(self.directory), *([f"http://127.0.0.1:{self._port}"] if self.networked else [])]
        return {**SETTINGS, "to": to}

    @property
    def strikes(self) -> tuple[str, ...]:
        """What is done to its processes, and how often, as in `emulators.demo.director.STRIKES`."""
        return ("feed_kills", "feed_kills", "feed_stops", *(("receiver_kills", "receiver_stops") if self.networked else ()))

    def parts(self) -> list[str]:
        """The parts that must run at this moment."""
        if not self.networked:
            return ["f0"]
        return ["f0", "f1", RECEIVER, *([FOLLOWER] if generations(self.received) else [])]

    def command(self, part: str) -> list[str] | None:
        """Returns the command that starts this part. None: it is no part of the feed."""
        arguments = {
            "f0": ["feed", "run"], "f1": ["feed", "run"], ONCE: ["feed", "run", "--once"],
            RECEIVER: ["feed", "receive", str(self.received), "--listen", f"127.0.0.1:{self._port}"],
        }.get(part)  # fmt: skip
        if part == FOLLOWER:
            arguments = ["--json", "feed", "follow", str(generations(self.received)[-1])]
        if arguments is None:
            return None
        config = [] if part in (RECEIVER, FOLLOWER) else ["--config", str(self._config)]
        return [sys.executable, "-m", "emulators.demo.players.product", str(os.getpid()), *config, *arguments]

    def await_follower(self) -> None:
        """Waits until the follower has printed all that was received, for a limited time."""
        if not self.networked or not (folders := generations(self.received)):
            return
        wanted, give_up_at = read_folder(folders[-1], "").frontier, time.monotonic() + FOLLOW_S
        while frontier_of_output(self._followed()) < wanted and time.monotonic() < give_up_at:
            time.sleep(0.1)

    def published(self) -> list[PublishedFeed]:
        """Returns what each place of the feed holds, of the newest generation."""
        folders = [(self.directory, "the directory"), *([(self.received, "the receiver")] if self.networked else [])]
        found = [read_folder(each[-1] if (each := generations(at)) else None, name) for at, name in folders]
        return [*found, *([read_output(self._followed(), "the follower")] if self.networked else [])]

    def _followed(self) -> Path:
        def number(log: Path) -> int:
            return int(log.name.split(".")[1])

        return max(self._log.glob(f"{FOLLOWER}.*.log"), key=number, default=self._log / f"{FOLLOWER}.0.log")
