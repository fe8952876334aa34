"""Callers of the command. A seed chooses a few command lines, their settings files, variables and stdin.

Each command runs in a child process and is judged by these rules:

    exit code       one of those that docs/failures.md lists, and not that of a killed process
    stderr          no traceback
    --json          what is on stdout after a success is JSON, one value or one a line
    put             0: `get` returns the very bytes
    exit code 7     only where a condition was given, or of `mv`; `--json` tells the revision that was found
    left behind     nothing but the files that were asked for

A child is forked from this process, which has loaded everything. To start an interpreter for each would take most of
the time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random

from emulators.callers.verdict import EpisodeResult, Violation, step_part
from emulators.simulation.recipe import RecipePart

CODES = {0, 1, 2, 3, 4, 5, 6, 7, 130}
CONDITION_FAILED = 7
ENDS_WITHIN_S = 30.0
SETTINGS_FILE = "settings.yaml"
_WRONG = ("", "-", "--", "x", "a/b/objects/c", "\udc80", "a/objects/\udcff", "a/objects/../b", "../../etc", "\n", "a/objects/" + "k" * 2000, "--json", "-1", "0",
          "9" * 400, "é", "~changelog/00/x", "nan", "/", ".", "/dev/null", "/proc/self/mem", "x=y", "=", "1:2", ":", "-5:", "5:1", "1e5", "inf")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Words:
    """What may stand at one place of a command line."""

    good: tuple[str, ...]
    odd: tuple[str, ...] = _WRONG

    def drawn(self, random: Random, wrong: float) -> str:
        return random.choice(self.odd if random.random() < wrong else self.good)


_ID = _Words(("a/objects/b", "photos/org.17/objects/2026/cat.jpg", "µ/objects/ключ", "a/objects/-x", "a/objects/" + "k" * 300))
_LIFETIME = _Words(("90s", "15m", "36h", "30d"), ("0s", "-1s", "1w", "s", "9999999999999d", "٣s", "1.5h", ""))
_CUSTOM = _Words(("a=b", "a=", "a=b=c"), ("=b", "a", "ключ=é", "A=b", "a\n=b", "x=" + "y" * 9000, "\udc80=x", "a b=c"))
_TYPE = _Words(("text/plain", "text/html; charset=utf-8"), ("", "a\x07b", "é", "x" * 9000, "\udc80"))
_FEED = _Words(("feeds/published.txt", "feeds", "-", "payload", "empty", "store/tiered.db", "out"))
_FORM = _Words(("text", "json", "avro"), ("delta", "x"))
_SCHEMA = _Words(("string", "long", '{"type": "array", "items": "string"}', "feeds/published.txt"))
_LIMIT = _Words(("1", "5", "100"))
_CHANGES = {
    "--if-absent": (0.2, None),
    "--if-revision": (0.2, _Words(("01a20165-eb55-7940-8bb5-a3a551aafd78",), ("", "x", "01A20165-EB55-7940-8BB5-A3A551AAFD78", "\udc80", "-"))),
}
"""Conditions of a change. Not every command takes both."""
_Options = dict[str, tuple[float, _Words | None]]
COMMANDS: dict[str, tuple[int, tuple[_Words, ...], _Options]] = {
    "put": (3, (_ID, _Words(("-", "-", "payload", "empty"))), {
        "--ttl": (0.2, _LIFETIME), "--tti": (0.2, _LIFETIME), "--custom": (0.2, _CUSTOM), "--content-type": (0.2, _TYPE), "--compress": (0.2, None),
        **_CHANGES}),
    "get": (2, (_ID,), {
        "-o": (0.5, _Words(("out", "out", "long" * 62, "dir"), (*_WRONG, "store", "absent/x", "n" * 300))), "--raw": (0.2, None),
        "--range": (0.3, _Words(("0:3", "1:", ":2", "-2:", "-3:", "0:99999999999999999999999"), ("9:", "3:1", "x", "", ":", "1:2:3", "-0:", "1_0:", " 1:2")))}),
    "head": (1, (_ID,), {}),
    "rm": (1, (_ID,), _CHANGES),
    "cp": (1, (_ID, _ID), _CHANGES),
    "mv": (1, (_ID, _ID), _CHANGES),
    "update-metadata": (1, (_ID,), {
        "--ttl": (0.3, _LIFETIME), "--custom": (0.3, _CUSTOM), "--remove-custom": (0.3, _Words(("a", "b"), ("",))), "--content-type": (0.3, _TYPE),
        "--filename": (0.3, _TYPE), **_CHANGES}),
    "set-expiry": (1, (_ID,), {
        "--at": (0.5, _Words(("2099-01-31T12:00:00Z", "2001-01-01T00:00:00Z"), ("2099-01-31T12:00:00", "2099-01-31", "9999-12-31T23:59:59-12:00", "x", "", "٣"))),
        "--from-creation": (0.5, _LIFETIME), "--never": (0.2, None), "--extend-only": (0.2, None), **_CHANGES}),
    "ls": (1, (_Words(("", "a", "a/", "photos/org.17/", "photos/org.17/objects/20")),), {
        "--limit": (0.3, _LIMIT), "--start-after": (0.2, _ID), "--folders": (0.3, None), "--long": (0.3, None)}),
    "recover --once": (1, (), {"--limit": (0.3, _LIMIT)}),
    "recover --dry-run": (1, (), {"--limit": (0.3, _LIMIT)}),
    "log list": (1, (), {"--stuck": (0.5, None), "--limit": (0.3, _LIMIT)}),
    **{f"log {what}": (1, (_Words(("01a20165-eb55-7940-8bb5-a3a551aafd78", "~changelog/zz/garbage", "--all")),), {}) for what in ("show", "retry")},
    "config show": (1, (), {}),
    "check": (1, (), {}),
    "provision": (1, (), {}),
    **{f"feed {what}": (1, (_FEED,), {
        "--at": (0.2, _Words(("0", "1", "9" * 30))), "--schema": (0.2, _SCHEMA), "--rollback": (0.1, None),
        "--bounded": (0.1, None), "--dates": (0.1, None)}) for what in ("view", "check")},
    "feed convert": (1, (_FEED, _Words(("-", "out"))), {"--to": (1, _FORM), "--schema": (0.7, _SCHEMA)}),
    "feed follow": (1, (_Words(("feeds", "dir")),), {"--until-idle": (1, _Words(("0",))), "--from": (0.3, _Words(("0", "1")))}),
    "odd": (1, (_Words((*_WRONG, "--help", "--version", "put", "log", "audit", "demo --seconds x", "completion")),), {}),
}  # fmt: skip
"""How often a command is drawn, its words, and how often it has which options."""
_TAKE_VALUES = ("-d", "-c", "-o", "--directory", "--config", "--")
_PUBLISHED = "update (a, time0, +1)\nprogress (time0, 1)\nupdate (b, time1, +1)\n"
_YAML = (
    "directory: store\nchangelog: sqlite\n", "directory: store\ninline_bytes_max: 10\nchangelog: sqlite\n", "", "[", "directory: 5", "directory: [x]", "\0", "nope: 1",
    "directory: store\nstore: {concurrency_max: 0}", "directory: store\nlease: {expiry_s: 1e-9}", "directory: store\nrecovery: {concurrency_max: 1e23}",
    "directory: store\ndirectory: other", "[" * 3000, "directory: '~/x'", "directory: /proc", "directory: /dev/null", "directory: store\nchangelog: bigtable",
    "gcs: {bucket: b}", "5", "- 1", "a: &a [*a]", "directory: store\nfeed: {poll_s: .nan}", "directory: \"\\uD800\"", "directory: store\nchangelog: noop\n",
)  # fmt: skip
_VARIABLES = (
    ("TIERED_DIRECTORY", "store"), ("TIERED_DIRECTORY", "other"), ("TIERED_DIRECTORY", ""), ("TIERED_INLINE_BYTES_MAX", "10"), ("TIERED_INLINE_BYTES_MAX", "x"),
    ("TIERED_LEASE__EXPIRY_S", "40"), ("TIERED_LEASE__EXPIRY_S", "nan"), ("TIERED_LEASE", "{"), ("TIERED_LEASE", '{"expiry_s": 40}'), ("TIERED_NOPE", "1"),
    ("TIERED_CONFIG", SETTINGS_FILE), ("TIERED_CONFIG", "absent.yaml"), ("TIERED_CONFIG", "\udc80"), ("COLUMNS", "1"), ("COLUMNS", "x"), ("LC_ALL", "C"), ("TERM", "dumb"),
    ("PYTHONUTF8", "0"), ("TIERED_CHANGELOG", "noop"), ("TIERED_GCS", '{"bucket": "b"}'), ("TIERED_STORE__QUEUE_MAX", "-1"), ("HOME", ""),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommandLine:
    """One command line. `stdin` None: it is closed."""

    arguments: tuple[str, ...]
    stdin: bytes | None = b""
    variables: tuple[tuple[str, str], ...] = ()
    number: int = 0

    def __str__(self) -> str:
        variables = " ".join(f"{name}={value!a}" for name, value in self.variables)
        stdin = "no stdin" if self.stdin is None else f"{len(self.stdin)} bytes of stdin"
        return f"{variables} tiered {' '.join(ascii(each) if len(each) < 100 else ascii(each[:100]) + '…' for each in self.arguments)}   ({stdin})".strip()


@dataclass(slots=True)
class FinishedCommand:
    code: int
    stdout: bytes
    stderr: str


@dataclass(frozen=True, slots=True)
class CommandRecipe:
    """What a seed chooses: a settings file and command lines."""

    seed: int
    settings: str
    steps: tuple[CommandLine, ...]
    ground: str = "of the command"
    left_out: frozenset[RecipePart] = frozenset()

    @classmethod
    def of(cls, seed: int) -> CommandRecipe:
        random = Random(f"{seed}/command")
        wrong = random.choice((0.0, 0.15, 0.5))
        text = _YAML[random.randrange(2)] if random.random() > wrong else random.choice(_YAML)
        lines = [CommandLine(("--directory", "store", "put", _ID.good[0], "payload"))] if random.random() < 0.9 else []
        lines += [_line(Random(f"{seed}/line {number}"), wrong) for number in range(random.randint(2, 7))]
        return cls(seed, text, tuple(replace(line, number=number) for number, line in enumerate(lines)))

    def without(self, parts: Iterable[RecipePart]) -> CommandRecipe:
        left_out = self.left_out | frozenset(parts)
        return replace(self, steps=tuple(line for line in self.steps if step_part(line.number) not in left_out), left_out=left_out)

    def words(self) -> Iterator[str]:
        yield f"seed {self.seed}: {SETTINGS_FILE} is {self.settings!r}"
        yield from (f"  {line.number}: {line}" for line in self.steps)


def _line(random: Random, wrong: float) -> CommandLine:
    where: tuple[str, ...] = random.choice((("--directory", "store"), ("--directory", "store"), ("--config", SETTINGS_FILE), ("-d", "store"), ("-c", SETTINGS_FILE)))
    if random.random() < wrong / 2:
        where = random.choice(((), ("--directory", "store", "--config", SETTINGS_FILE), ("--directory",), ("--nope",), ("-d", random.choice(_WRONG)), ("-c", random.choice(_WRONG))))
    command = random.choices(list(COMMANDS), [weight for weight, _, _ in COMMANDS.values()])[0]
    _, words, options = COMMANDS[command]
    arguments = command.split() if command != "odd" else []
    arguments += [each.drawn(random, wrong) for each in words if random.random() > wrong / 10]
    for option, (often, value) in options.items():
        if random.random() < often:
            arguments += [option, *([] if value is None else [value.drawn(random, wrong)])]
    if random.random() < 0.3 and command != "feed convert":  # to stdout it writes the file, in the form that was asked for
        arguments.append("--json")
    stdin = None if random.random() < wrong / 5 else random.randbytes(random.choice((0, 5, 11, 100, 5000, 1_100_000)))
    variables = tuple(random.choice(_VARIABLES) for _ in range(random.choice((0, 0, 1, 2)))) if random.random() < wrong else ()
    return CommandLine((*where, *arguments), stdin, variables)


def run(recipe: CommandRecipe) -> EpisodeResult:
    result = EpisodeResult(recipe)
    directory = Path(tempfile.mkdtemp(prefix="commands-"))
    try:
        (directory / SETTINGS_FILE).write_bytes(recipe.settings.encode("utf-8", "surrogatepass"))
        (directory / "payload").write_bytes(Random(recipe.seed).randbytes(3000))
        (directory / "empty").touch()
        (directory / "dir").mkdir()
        (directory / "feeds").mkdir()
        (directory / "feeds/published.txt").write_text(_PUBLISHED)
        for line in recipe.steps:
            before = _listed(directory)
            done = call(line, directory)
            result.calls += 1
            result.trace.append(f"{line.number}: {done.code} {done.stderr.strip()[-200:]!r}")
            judge(line, done, directory, before)
    except Violation as violation:
        result.violation = violation
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return result


def judge(line: CommandLine, done: FinishedCommand, directory: Path, before: set[str]) -> None:
    """Raises `Violation` if the command did not keep the rules. `before`: the files that were there before it ran."""
    if done.code not in CODES:
        raise Violation("exit code", f"{line}: {done.code} {done.stderr[-2000:]}")
    if "Traceback (most recent call last)" in done.stderr:
        raise Violation("traceback", f"{line}: {done.stderr[-3000:]}")
    if done.code not in (0, 130) and not done.stderr.strip() and not done.stdout.strip():
        raise Violation("silent", f"{line}: exit code {done.code}, and not a word")
    if done.code == CONDITION_FAILED:
        _judge_refusal(line, done)
    if done.code == 0 and _wants_json(line) and "--help" not in line.arguments and "--version" not in line.arguments:
        _check_json(line, done.stdout.decode("utf-8", "surrogateescape"))
    made = {name for name in _listed(directory) - before if not name.startswith(("store/", "other/"))} - {"store", "other"}
    paths = [each for each in line.arguments if each and len(each) < 300] if done.code == 0 or "put" in line.arguments else []
    asked = {*paths, *map(os.path.normpath, paths), "~"}  # a/../b makes both a and b
    if odd := [name for name in made if not any(_is_part(name, each) for each in asked)]:
        raise Violation("left behind", f"{line}: exit code {done.code}, and there is {odd}")
    if "put" in line.arguments and done.code == 0:
        _check_stored(line, directory)


def _check_json(line: CommandLine, printed: str) -> None:
    """One value, or one in each line."""
    with suppress(ValueError):
        json.loads(printed)
        return
    for text in printed.splitlines():
        try:
            json.loads(text)
        except ValueError as error:
            raise Violation("no JSON", f"{line}: {text[:200]!r}: {error}") from None


def _wants_json(line: CommandLine) -> bool:
    """Tells whether `--json` is an option there, and no value of another option."""
    return any(word == "--json" and before not in _TAKE_VALUES for before, word in pairwise(("", *line.arguments)))


def _judge_refusal(line: CommandLine, done: FinishedCommand) -> None:
    if not {"--if-absent", "--if-revision", "mv"} & set(line.arguments):
        raise Violation("exit code", f"{line}: {done.code} without a condition")
    if not _wants_json(line):
        return
    try:
        told = json.loads(done.stdout)
        well = told["changed"] is False and {"object", "revision"} <= set(told)
    except (ValueError, KeyError):
        well = False
    if not well:
        raise Violation("no JSON", f"{line}: {done.stdout!r}")


def _is_part(name: str, asked: str) -> bool:
    """Tells whether a file is what was asked for, lies in it, or is a directory on the way to it."""
    return name == asked or name.startswith(f"{asked}/") or asked.startswith(f"{name}/")


def _check_stored(line: CommandLine, directory: Path) -> None:
    at = line.arguments.index("put")
    where, object_id, source = line.arguments[:at], line.arguments[at + 1], line.arguments[at + 2]
    expected = line.stdin if source == "-" else (directory / source).read_bytes() if source in ("payload", "empty") else None
    if expected is None or not object_id.startswith(("a/", "photos/", "µ/")) or any(option in line.arguments for option in ("--ttl", "--tti")):
        return
    got = call(CommandLine((*where, "get", object_id), b"", line.variables), directory)
    if got.code != 0 or got.stdout != expected:
        raise Violation("wrong answer", f"{line} was done, and get ends with {got.code}, {len(got.stdout)} of {len(expected)} bytes: {got.stderr[-300:]}")


def call(line: CommandLine, directory: Path) -> FinishedCommand:
    """Runs a command line in a child. Its output goes into temporary files elsewhere.

    A child that does not end is killed.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(line.stdin or b"")
        stdin.seek(0)
        child = os.fork()
        if child == 0:
            _become(line, directory, stdin.fileno(), stdout.fileno(), stderr.fileno())
        status = _wait(child, line)
        for file in (stdout, stderr):
            file.seek(0)
        return FinishedCommand(os.waitstatus_to_exitcode(status), stdout.read(), stderr.read().decode("utf-8", "backslashreplace"))


def _wait(child: int, line: CommandLine) -> int:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Violation("hang", f"{line} did not end within {ENDS_WITHIN_S:g} s")


def _become(line: CommandLine, directory: Path, stdin: int, stdout: int, stderr: int) -> None:
    """Runs the command itself in this process. It does not return."""
    code = 70
    try:
        os.chdir(directory)
        for number, file in enumerate((stdin, stdout, stderr)):
            os.dup2(file, number)
        if line.stdin is None:
            os.close(0)
        os.environ.update({name: value for name, value in line.variables if "\0" not in value})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin = None if line.stdin is None else open(0, closefd=False)  # noqa: SIM115 - this process ends with it
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
        sys.argv = ["tiered", *line.arguments]
        from recovery.cli.main import main

        main()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(end.code)
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - as Python would end
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        for output in (sys.stdout, sys.stderr):
            try:
                output.flush()
            except (OSError, ValueError):
                continue
        os._exit(code)


def _listed(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}
