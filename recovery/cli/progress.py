"""The progress bar of `put` and `get`, with the rate and the time left; and the line that counts many objects.

It is on a terminal's stderr and nowhere else: not in a pipe, not with `--json` or `--quiet`, not between the bytes that
a terminal shows, and not where stderr has JSON lines. It is gone when the command ends, however it ends. Log lines,
such as that of a part that is sent again, are shown above it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from changelog.base.runtime import SystemRuntime
from recovery.cli.shared import choice
from recovery.logs import is_json
from tiered.stored import Progress

if TYPE_CHECKING:
    import rich.progress


SHOWN_EVERY_S = 0.2


@contextmanager
def showing_bytes(*, quiet: bool, to_stdout: bool = False) -> Iterator[Progress | None]:
    """Yields what `put` and `get` tell of their progress. None: no bar is wanted. `to_stdout`: the bytes go there."""
    stderr_shows = sys.stderr is not None and sys.stderr.isatty()
    if quiet or choice.json or is_json() or not stderr_shows or (to_stdout and sys.stdout is not None and sys.stdout.isatty()):
        yield None
        return
    bar = _ByteBar()
    try:
        yield bar.tell
    finally:
        bar.stop()


class CountLine:
    """A line on a terminal's stderr: how many of something, and how many bytes, so far."""

    def __init__(self, what: str, bytes_are: str = "bytes") -> None:
        self._what, self._bytes_are = what, bytes_are
        self._monotonic = SystemRuntime().monotonic
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty() and not (choice.json or is_json())
        self._shown_at = 0.0
        self._bytes = 0
        self._is_shown = False
        self.count = 0

    def add(self, size: int) -> None:
        """Counts one more, of so many bytes."""
        self.count += 1
        self._bytes += size
        if self._is_terminal and self._monotonic() - self._shown_at > SHOWN_EVERY_S:
            self._shown_at, self._is_shown = self._monotonic(), True
            sys.stderr.write(f"\r\x1b[K{self.count:,} {self._what}, {self._bytes:,} {self._bytes_are}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Takes the line off the terminal."""
        if self._is_shown:
            self._is_shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class _ByteBar:
    """A bar that appears when a first part is through and more is to come: what is small has none."""

    def __init__(self) -> None:
        self._bar: rich.progress.Progress | None = None

    def tell(self, so_far: int, total: int | None) -> None:
        if self._bar is None:
            if so_far == total:
                return
            self._bar = _begun()
            self._task = self._bar.add_task("", total=total)
        self._bar.update(self._task, completed=so_far, total=total)

    def stop(self) -> None:
        if self._bar is not None:
            said = sys.stderr
            with suppress(OSError):  # the terminal is gone
                self._bar.stop()
            _log_to(said, sys.stderr)


def _begun() -> rich.progress.Progress:
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from recovery.cli.audit.console import console

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console(stderr=True), transient=True)
    said = sys.stderr
    bar.start()  # and what is written to `sys.stderr` is shown above it
    _log_to(said, sys.stderr)
    return bar


def _log_to(before: TextIO, stream: TextIO) -> None:
    """Lets the log go to another stream than before."""
    for handler in logging.root.handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            handler.setStream(stream)
