"""The bar of `tiered put` and `get`: on a terminal's stderr and nowhere else. It is gone when the command ends."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from threading import Thread

import pytest

from tests.given.command_line import OBJECT, OWN_PROCESS, Command

pytestmark = pytest.mark.slow

PAYLOAD = os.urandom(40_000_000)
SHOW_CURSOR, HIDE_CURSOR = b"\x1b[?25h", b"\x1b[?25l"


class ShownOnTerminal:
    """A command whose stderr is a terminal. `shown`: what was written to it."""

    def __init__(
        self, store: Command, *arguments: str, both: bool = False, stdin: int = subprocess.DEVNULL, command: list[str] | None = None
    ) -> None:
        self._leader, follower = pty.openpty()
        termios.tcsetwinsize(follower, (24, 100))
        command = command or [sys.executable, *OWN_PROCESS, "--directory", str(store.store), *arguments]
        environment = {**store.environment, "TERM": "xterm"}
        self.running = subprocess.Popen(
            command, stdin=stdin, stdout=follower if both else subprocess.PIPE, stderr=follower, cwd=store.directory, env=environment
        )
        os.close(follower)
        self.shown = self._out = b""
        self._reading = Thread(target=self._read_out)
        self._reading.start()

    def _read_out(self) -> None:
        if self.running.stdout is not None:
            with self.running.stdout as out:
                self._out = out.read()

    def read(self, until: bytes | None = None) -> bytes:
        """Reads the terminal until it shows something, or to its end."""
        while until is None or until not in self.shown:
            try:
                part = os.read(self._leader, 65536)
            except OSError:  # nobody has it open any more
                break
            if not part:
                break
            self.shown += part
        return self.shown

    def end(self) -> tuple[int, bytes]:
        """Returns the exit code and stdout."""
        self.read()
        code = self.running.wait(30)
        self._reading.join()
        os.close(self._leader)
        return code, self._out


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (file := tmp_path / "payload").write_bytes(PAYLOAD)
    return file


def is_bar(shown: bytes) -> bool:
    """With size, rate and the time that is left, however quick this machine is."""
    return HIDE_CURSOR in shown and b"/40.0 MB" in shown and re.search(rb"[0-9] [kMG]B/s", shown) is not None and b":" in shown


def ends_cleanly(shown: bytes) -> bool:
    return HIDE_CURSOR not in shown or shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)


@pytest.mark.night
def test_put_and_get_show_size_rate_and_time_left_on_a_terminal_alone(tiered: Command, file: Path) -> None:
    put = ShownOnTerminal(tiered, "put", OBJECT, str(file))
    code, out = put.end()
    assert code == 0 and OBJECT.encode() in out and is_bar(put.shown) and ends_cleanly(put.shown)
    get = ShownOnTerminal(tiered, "get", OBJECT, "-o", "saved")
    assert get.end() == (0, b"") and is_bar(get.shown) and ends_cleanly(get.shown)
    assert (tiered.directory / "saved").read_bytes() == PAYLOAD
    piped = ShownOnTerminal(tiered, "get", OBJECT)
    assert piped.end() == (0, PAYLOAD) and is_bar(piped.shown) and ends_cleanly(piped.shown)
    for arguments in (("--quiet",), ("--json",)):
        silent = ShownOnTerminal(tiered, "get", OBJECT, "-o", "saved", *arguments)
        assert silent.end()[0] == 0 and silent.shown == b""
    assert tiered("get", OBJECT, "-o", "saved", python=OWN_PROCESS) == "" and tiered.errors == ""


def test_a_small_object_and_a_payload_on_the_terminal_itself_have_no_bar(tiered: Command) -> None:
    tiered("put", OBJECT, "-", stdin=b"small\n" * 100_000)
    shown = ShownOnTerminal(tiered, "get", OBJECT, both=True)
    assert shown.end()[0] == 0 and shown.shown.replace(b"\r\n", b"\n") == b"small\n" * 100_000
    tiered("put", OBJECT, "-", stdin=b"small")
    small = ShownOnTerminal(tiered, "get", OBJECT, "-o", "saved")
    assert small.end() == (0, b"") and small.shown == b""


CUT_OFF = """
import time
from changelog.base.events import events
from recovery.cli.progress import showing_bytes
from recovery.logs import write_to_stderr

write_to_stderr()
with showing_bytes(quiet=False) as progress:
    for count in range(1, 40):
        progress(count * 1_000_000, 40_000_000)
        time.sleep(0.02)
        if count == 20:
            events.warning("upload_cut_off", "the connection broke off", part=7)
events.warning("upload_cut_off", "afterwards", part=8)
"""


def test_a_part_that_is_sent_again_is_told_above_the_bar_and_was_written_into_it(tiered: Command) -> None:
    shown = ShownOnTerminal(tiered, command=[sys.executable, "-c", CUT_OFF])
    assert shown.end() == (0, b"") and is_bar(shown.shown) and ends_cleanly(shown.shown)
    before, line, after = shown.shown.partition(b"WARNING upload_cut_off part=7: the connection broke off")
    assert line and after.startswith(b"\r\n") and b"/40.0 MB" in after, "the bar is drawn anew below the line"
    assert before.rpartition(b"\n")[2].rpartition(b"\x1b[2K")[2].startswith(b"20"), "a line of its own, from its date on"
    assert b"WARNING upload_cut_off part=8: afterwards" in after[after.rindex(SHOW_CURSOR) :]


def test_a_bar_ends_before_an_error_is_told(tiered: Command, file: Path) -> None:
    put = ShownOnTerminal(tiered, "put", OBJECT, str(file), "--if-revision", "018bcfe5-6800-7000-8000-000000000001")
    code, _ = put.end()
    assert code == 7 and ends_cleanly(put.shown)
    assert put.shown.rindex(b"tiered: ") > put.shown.rfind(SHOW_CURSOR)


def test_ctrl_c_ends_the_bar_and_the_put(tiered: Command) -> None:
    reader, writer = os.pipe()
    put = ShownOnTerminal(tiered, "put", OBJECT, "-", stdin=reader)
    os.close(reader)
    for _ in range(20):
        os.write(writer, bytes(60_000))
    put.read(until=b"MB")
    time.sleep(0.2)
    put.running.send_signal(signal.SIGINT)
    code, out = put.end()
    os.close(writer)
    assert (code, out) == (130, b"") and ends_cleanly(put.shown) and b"Traceback" not in put.shown
    tiered("head", OBJECT, code=range(1, 4))
