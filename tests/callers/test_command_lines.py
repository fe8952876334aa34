"""How the callers of the command judge what it did. No command is run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulators.callers.command_lines import CommandLine, FinishedCommand, judge
from emulators.callers.verdict import Violation

OBJECT = "a/objects/b"
FAILED = b'{"object": "a/objects/b", "changed": false, "revision": null}\n'


def verdict(words: str, code: int, stdout: bytes, stderr: str, directory: Path, files: tuple[str, ...] = ()) -> str | None:
    """The kind of the violation. `files`: what the command has made."""
    for name in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    try:
        judge(CommandLine(tuple(words.split())), FinishedCommand(code, stdout, stderr), directory, set())
    except Violation as violation:
        return violation.kind
    return None


@pytest.mark.parametrize(("words", "code", "stdout", "stderr", "kind"), [
    (f"-d store head {OBJECT}", 8, b"", "no", "exit code"),
    (f"-d store head {OBJECT}", 1, b"", "Traceback (most recent call last)", "traceback"),
    (f"-d store head {OBJECT}", 1, b"", "", "silent"),
    ("-d store ls --json", 0, b"a/objects/b\n", "", "no JSON"),
    (f"-d store rm {OBJECT}", 7, b"", "it was changed", "exit code"),
    (f"-d store rm {OBJECT} --if-revision x --json", 7, b"{}", "it was changed", "no JSON"),
    (f"-d store rm {OBJECT} --if-revision x --json", 7, b"", "it was changed", "no JSON"),
    (f"-d store rm {OBJECT} --if-revision x --json", 7, FAILED, "it was changed", None),
    (f"-d store rm {OBJECT} --if-revision x", 7, b"", "it was changed", None),
    (f"-d store mv {OBJECT} a/objects/c", 7, b"", "it was changed", None),
    ("-d store ls --json", 0, b'{"object": "a/objects/b"}\n', "", None),
    ("-d --json config show", 0, b"setting  value\n", "", None),
])
def test_what_breaks_a_rule_is_found_and_nothing_else(
    words: str, code: int, stdout: bytes, stderr: str, kind: str | None, tmp_path: Path
) -> None:
    assert verdict(words, code, stdout, stderr, tmp_path) == kind


def test_files_that_nobody_asked_for_are_found(tmp_path: Path) -> None:
    assert verdict(f"-d store get {OBJECT} -o out", 0, b"", "", tmp_path, ("out", "store/tiered.db")) is None
    assert verdict(f"-d store get {OBJECT} -o out", 0, b"", "", tmp_path, (".tiered-1.partial",)) == "left behind"


def test_a_path_through_another_directory_asks_for_that_one_too(tmp_path: Path) -> None:
    (tmp_path / "a/c").mkdir(parents=True)
    assert verdict("-d a/c/../b ls", 0, b"", "", tmp_path, ("a/b/tiered.db",)) is None
