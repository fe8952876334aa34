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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

from emulators.callers.model import Violation

CODES = {0, 1, 2, 3, 4, 5, 6, 7, 130}
CONDITION_FAILED = 7
ENDS_WITHIN_S = 30.0
SETTINGS_FILE = "settings.yaml"
_IDS = ("a/objects/b", "photos/org.17/objects/2026/cat.jpg", "µ/objects/ключ", "a/objects/-x", "a/objects/" + "k" * 300)
_WRONG = ("", "-", "--", "x", "a/b/objects/c", "\udc80", "a/objects/\udcff", "a/objects/../b", "../../etc", "\n", "a/objects/" + "k" * 2000, "--json", "-1", "0",
          "9" * 400, "é", "~changelog/00/x", "nan", "/", ".", "/dev/null", "/proc/self/mem", "x=y", "=", "1:2", ":", "-5:", "5:1", "1e5", "inf")  # fmt: skip
_LIFETIMES = ("90s", "15m", "36h", "30d", "0s", "-1s", "1w", "s", "9999999999999d", "٣s", "1.5h", "")
_RANGES = ("0:3", "1:", ":2", "-2:", "-3:", "9:", "3:1", "x", "", ":", "1:2:3", "0:99999999999999999999999", "-0:", "1_0:", " 1:2")
_CUSTOM = ("a=b", "a=", "=b", "a", "ключ=é", "a=b=c", "A=b", "a\n=b", "x=" + "y" * 9000, "\udc80=x", "a b=c")
_REVISIONS = ("01a20165-eb55-7940-8bb5-a3a551aafd78", "", "x", "01A20165-EB55-7940-8BB5-A3A551AAFD78", "\udc80", "-")
_TIMES = ("2099-01-31T12:00:00Z", "2001-01-01T00:00:00Z", "2099-01-31T12:00:00", "2099-01-31", "9999-12-31T23:59:59-12:00", "x", "", "٣")
_REMOVED = ("a", "b", "")
_TAKE_VALUES = ("-d", "-c", "-o", "--directory", "--config", "--")
_TYPES = ("text/plain", "", "a\x07b", "é", "x" * 9000, "text/html; charset=utf-8", "\udc80")
_FEEDS = ("feeds/published.txt", "feeds", "-", "payload", "empty", "store/tiered.db", "out")
_FORMS = ("text", "json", "avro", "delta", "bare", "framed")
_SCHEMAS = ("string", "long", '{"type": "array", "items": "string"}', "feeds/published.txt")
_PUBLISHED = "update (a, time0, +1)\nprogress (time0, 1)\nupdate (b, time1, +1)\n"
_YAML = (
    "directory: store\nchangelog: sqlite\n", "directory: store\ninline_bytes_max: 10\nchangelog: sqlite\n", "", "[", "directory: 5", "directory: [x]", "\0", "nope: 1",
    "directory: store\nstore: {concurrency_max: 0}", "directory: store\nlease: {heartbeat_interval_s: 1e-9}", "directory: store\nrecovery: {page_max: 1e23}",
    "directory: store\ndirectory: other", "[" * 3000, "directory: '~/x'", "directory: /proc", "directory: /dev/null", "directory: store\nchangelog: bigtable",
    "gcs: {bucket: b}", "5", "- 1", "a: &a [*a]", "directory: store\nmarks: {swap_age_max_s: .nan}", "directory: \"\\uD800\"", "directory: store\nchangelog: noop\n",
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

    def __str__(self) -> str:
        variables = " ".join(f"{name}={value!a}" for name, value in self.variables)
        stdin = "no stdin" if self.stdin is None else f"{len(self.stdin)} bytes of stdin"
        return f"{variables} tiered {' '.join(ascii(each) if len(each) < 100 else ascii(each[:100]) + '…' for each in self.arguments)}   ({stdin})".strip()


@dataclass(slots=True)
class FinishedCommand:
    code: int
    stdout: bytes
    stderr: str


@dataclass(slots=True)
class CommandResult:
    trace: list[str] = field(default_factory=list)
    violation: Violation | None = None


def recipe(seed: int) -> tuple[str, list[CommandLine]]:
    """Returns the settings file and the command lines of a seed."""
    random = Random(f"{seed}/command")
    wrong = random.choice((0.0, 0.15, 0.5))
    text = _YAML[random.randrange(2)] if random.random() > wrong else random.choice(_YAML)
    begun = [CommandLine(("--directory", "store", "put", _IDS[0], "payload"))] if random.random() < 0.9 else []
    return text, begun + [_line(Random(f"{seed}/line {number}"), wrong) for number in range(random.randint(2, 7))]


def _line(random: Random, wrong: float) -> CommandLine:
    def some(good: tuple[str, ...], bad: tuple[str, ...] = _WRONG) -> str:
        return random.choice(bad) if random.random() < wrong else random.choice(good)

    where: tuple[str, ...] = random.choice((("--directory", "store"), ("--directory", "store"), ("--config", SETTINGS_FILE), ("-d", some(("store",))), ("-c", some((SETTINGS_FILE,)))))
    if random.random() < wrong / 3:
        where = random.choice(((), ("--directory", "store", "--config", SETTINGS_FILE), ("--directory",), ("--nope",)))
    command = random.choice(("put", "put", "put", "get", "get", "head", "rm", "ls", "cp", "mv", "update-metadata", "set-expiry", "recover", "log list", "log show", "log retry", "config show", "check", "provision", "feed view", "feed check", "feed convert", "feed follow", "odd"))
    arguments: list[str] = command.split()
    match command:
        case "put":
            arguments += [some(_IDS), some(("-", "-", "payload", "empty"))]
            arguments += _options(random, wrong, 0.2, {"--ttl": _LIFETIMES, "--tti": _LIFETIMES, "--custom": _CUSTOM, "--content-type": _TYPES})
            arguments += [*_conditions(random, wrong), *(["--compress"] if random.random() < 0.2 else [])]
        case "get":
            arguments += [some(_IDS)]
            if random.random() < 0.5:
                arguments += ["-o", some(("out", "out", "long" * 62, "dir"), (*_WRONG, "store", "absent/x", "n" * 300))]
            if random.random() < 0.3:
                arguments += ["--range", random.choice(_RANGES)]
            arguments += ["--raw"] if random.random() < 0.2 else []
        case "head":
            arguments += [some(_IDS)]
        case "rm":
            arguments += [some(_IDS), *_conditions(random, wrong)]
        case "cp" | "mv":
            arguments += [some(_IDS), some(_IDS), *_conditions(random, wrong)]
        case "update-metadata":
            arguments += [some(_IDS)]
            arguments += _options(random, wrong, 0.3, {
                "--ttl": _LIFETIMES, "--custom": _CUSTOM, "--remove-custom": _REMOVED, "--content-type": _TYPES, "--filename": _TYPES,
            })  # fmt: skip
            arguments += _conditions(random, wrong)
        case "set-expiry":
            arguments += [some(_IDS)]
            arguments += _options(random, wrong, 0.5, {"--at": _TIMES, "--from-creation": _LIFETIMES})
            arguments += [option for option in ("--never", "--extend-only") if random.random() < 0.2] + _conditions(random, wrong)
        case "ls":
            arguments += [some(("", "a", "a/", "photos/org.17/", "photos/org.17/objects/20"))] if random.random() < 0.7 else []
            arguments += ["--limit", some(("1", "100"))] if random.random() < 0.3 else []
            arguments += ["--start-after", some(_IDS)] if random.random() < 0.2 else []
            arguments += [option for option in ("--folders", "--long") if random.random() < 0.3]
        case "recover":
            arguments += [random.choice(("--once", "--dry-run"))]
            arguments += ["--limit", some(("1", "5"))] if random.random() < 0.3 else []
        case "log list":
            arguments += ["--stuck"] * random.randrange(2) + (["--limit", some(("1",))] if random.random() < 0.3 else [])
        case "log show" | "log retry":
            arguments += [some(("01a20165-eb55-7940-8bb5-a3a551aafd78", "~changelog/zz/garbage"))] if random.random() < 0.8 else ["--all"]
        case "feed view" | "feed check":
            arguments += [some(_FEEDS) for _ in range(random.randint(1, 2))]
            for option, possible in (("--at", ("0", "1", "9" * 30)), ("--form", _FORMS), ("--schema", _SCHEMAS)):
                arguments += [option, some(possible)] if random.random() < 0.2 else []
            arguments += [option for option in ("--rollback", "--bounded", "--dates") if random.random() < 0.1]
        case "feed convert":
            arguments += [some(_FEEDS), some(("-", "out")), "--to", some(_FORMS)]
            arguments += ["--schema", some(_SCHEMAS)] if random.random() < 0.7 else []
        case "feed follow":
            arguments += [some(("feeds", "dir")), "--until-idle", "0"] + (["--from", some(("0", "1"))] if random.random() < 0.3 else [])
        case "odd":
            arguments = [random.choice((*_WRONG, "--help", "--version", "put", "log", "audit", "demo --seconds x", "completion"))]
    if random.random() < 0.3 and command != "feed convert":  # to stdout it writes the file, in the form that was asked for
        arguments.append("--json")
    stdin = None if random.random() < wrong / 5 else random.randbytes(random.choice((0, 5, 11, 100, 5000, 1_100_000)))
    variables = tuple(random.choice(_VARIABLES) for _ in range(random.choice((0, 0, 1, 2)))) if random.random() < wrong else ()
    return CommandLine((*where, *arguments), stdin, variables)


def _options(random: Random, wrong: float, often: float, known: dict[str, tuple[str, ...]]) -> list[str]:
    """Some of these options, each with one of its values. The first value is a good one."""
    chosen = [(option, values) for option, values in known.items() if random.random() < often]
    return [word for option, values in chosen for word in (option, random.choice(values[: 1 if wrong == 0 else None]))]


def _conditions(random: Random, wrong: float) -> list[str]:
    """Conditions of a change. Not every command takes both."""
    absent = ["--if-absent"] if random.random() < 0.2 else []
    return absent + (["--if-revision", random.choice(_REVISIONS if random.random() < wrong else _REVISIONS[:1])] if random.random() < 0.2 else [])


def run(seed: int) -> CommandResult:
    text, lines = recipe(seed)
    result = CommandResult()
    directory = Path(tempfile.mkdtemp(prefix="commands-"))
    try:
        (directory / SETTINGS_FILE).write_bytes(text.encode("utf-8", "surrogatepass"))
        (directory / "payload").write_bytes(Random(seed).randbytes(3000))
        (directory / "empty").touch()
        (directory / "dir").mkdir()
        (directory / "feeds").mkdir()
        (directory / "feeds/published.txt").write_text(_PUBLISHED)
        for number, line in enumerate(lines):
            before = _listed(directory)
            done = call(line, directory)
            result.trace.append(f"{number}: {line}: {done.code} {done.stderr.strip()[-200:]!r}")
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


def replayed(seed: int) -> tuple[bool, Iterator[str]]:
    """Runs a seed.

    Returns whether all went well, and the settings file, the command lines with their results, and the verdict.
    """
    result = run(seed)

    def lines() -> Iterator[str]:
        yield f"seed {seed}: {SETTINGS_FILE} is {recipe(seed)[0]!r}"
        yield from (f"  {each}" for each in result.trace)
        yield "every command kept its word" if result.violation is None else f"violation: {result.violation}"

    return result.violation is None, lines()
