"""What holds for every command of `tiered`.

Help, options that stand anywhere, wrong arguments, JSON, and streams that are closed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from changelog.base.extras import installing
from recovery.cli.app import app, run
from recovery.cli.exit_codes import EXIT_CODES, OWN
from recovery.cli.main import GARBAGE_MIN
from recovery.cli.shared import choice
from tests.given.command_line import OBJECT, Command, plant
from tests.given.repository import ROOT
from tiered.settings import BLOB_SECTIONS, ROW_SECTIONS

COMMANDS: dict[str, list[str]] = {
    "put": [OBJECT, "payload"], "get": [OBJECT, "-o", "out"], "head": [OBJECT], "rm": [OBJECT], "ls": [], "status": [],
    "sync": ["photos/objects/none", "made"], "cp": [OBJECT, "photos/objects/copy"], "mv": [OBJECT, "photos/objects/moved"],
    "update-metadata": [OBJECT, "--content-type", "text/plain"], "set-expiry": [OBJECT, "--from-creation", "36h"],
    "recover": ["--once"], "provision": [], "check": [], "prove": [], "hand-back": [], "backup": ["store"], "log abort": ["x"],
    "log list": [], "log show": ["x"], "log retry": ["--all"],
    "audit plan": [],
    "audit run": ["--engine", "local", "--to", "", "--parallel", "1"], "audit show": [OBJECT], "config show": [],
    "audit delete": ["audit-0", "--class", "orphan"], "audit restore": ["audit-0"], "feed view": ["feed/0.txt"],
    "feed check": ["feed/0.txt"], "feed convert": ["feed/0.txt", "converted", "--to", "json"], "feed follow": ["feed", "--until-idle", "0"],
    "feed run": ["--once"], "feed receive": [""], "feed status": [], "export objects": ["--to", "store/exported"],
    "export table": ["--to", "store/exported"], "export verify": ["feed"], "import": ["feed"],
}
"""Each with arguments of its own; those in `REFUSED` with such as they refuse at once."""

REFUSED = {
    "audit run": 2, "audit delete": 2, "audit restore": 2, "feed run": 3, "feed receive": 3, "log abort": 3, "log show": 3,
    "export objects": 3, "export table": 3, "export verify": 3, "import": 3, "hand-back": 3, "backup": 3,
}
UNKNOWN = "018bcfe5-6800-7000-8000-000000000001"
"""The id of no change."""
GROUPS = ("", "log", "audit", "feed", "export", "config")
WITHOUT_A_STORE = {
    "provision", "prove", "put", "config show", "feed view", "feed check", "feed convert", "feed follow", "feed receive",
    "export verify", "import",
}
"""They make it, or do without."""
DAMAGE = "Traceback (most recent call last)"

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """Runs a command line in this process, in a directory of its own; returns the exit code and what was printed."""
    for name in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "payload").write_bytes(b"hello")
    (tmp_path / "feed").mkdir()
    (tmp_path / "feed/0.txt").write_text("progress (time0, 0)\n")

    def called(*arguments: str) -> tuple[int, str, str]:
        choice.config = choice.directory = None
        choice.json = choice.verbose = False
        monkeypatch.setattr(sys, "argv", ["tiered", *arguments])
        capsys.readouterr()
        code = run()
        printed = capsys.readouterr()
        assert DAMAGE not in printed.err
        return code, printed.out, printed.err

    yield called
    choice.config = choice.directory = None
    choice.json = choice.verbose = False


@pytest.fixture
def store(call: Call) -> Call:
    """With one object in `store`."""
    assert call("-d", "store", "put", OBJECT, "payload")[0] == 0
    return call


def test_every_command_of_the_program_is_in_the_table() -> None:
    groups = [""]

    def commands(within: TyperGroup, before: str = "") -> Iterator[str]:
        for name, each in within.commands.items():
            if isinstance(each, TyperGroup):
                groups.append(f"{before}{name}")
                yield from commands(each, f"{before}{name} ")
            else:
                yield f"{before}{name}"

    program = get_command(app)
    assert isinstance(program, TyperGroup)
    assert sorted(commands(program)) == sorted(COMMANDS)
    assert sorted(GROUPS) == sorted(groups)


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPS])
def test_help_and_unknown_options(call: Call, command: str) -> None:
    words = command.split()
    code, out, _ = call(*words, "--help")
    assert code == 0 and all(option in out for option in ("--config", "--directory", "--json", "--verbose"))
    assert "<bool>" not in out, "it looks as if a flag took a value"
    told = " ".join(out.partition("Exit codes: ")[2].split())
    assert all(f"{number} {means}" in told for number, means in (OWN.get(command, {}) if command else EXIT_CODES).items()) and told
    code, out, errors = call(*words, "--no-such-option")
    assert (code, out) == (2, "") and errors.count("\n") == 1
    assert errors.startswith("tiered: No such option: --no-such-option")
    assert errors.endswith(f" See '{' '.join(['tiered', *words])} --help'.\n")


def test_exit_codes_are_told_of_commands_that_there_are() -> None:
    assert OWN.keys() <= {*COMMANDS, *GROUPS}


@pytest.mark.parametrize(("arguments", "code"), [
    ("get a/objects/x", 1), ("head a/objects/x", 1), ("cp a/objects/x a/objects/y", 1), ("mv a/objects/x a/objects/y", 1),
    ("update-metadata a/objects/x --origin x", 1), ("set-expiry a/objects/x --never", 1), (f"put {OBJECT} payload --if-absent", 7),
    (f"cp {OBJECT} {OBJECT}2 --if-revision {UNKNOWN}", 7), (f"mv {OBJECT} {OBJECT}2 --if-revision {UNKNOWN}", 7),
    (f"rm {OBJECT} --if-revision {UNKNOWN}", 7), (f"update-metadata {OBJECT} --origin x --if-revision {UNKNOWN}", 7),
    (f"set-expiry {OBJECT} --never --if-revision {UNKNOWN}", 7), (f"log show {UNKNOWN}", 1), (f"log retry {UNKNOWN}", 1),
    (f"log abort {UNKNOWN}", 1), ("audit run --engine local --grace 1s", 2), ("status", 0), ("feed status", 0),
])  # fmt: skip
def test_a_command_ends_as_its_help_says(store: Call, arguments: str, code: int) -> None:
    name = next(command for command in COMMANDS if arguments.startswith(command))
    assert store("-d", "store", *arguments.split())[0] == code
    assert code in OWN[name]


def test_what_is_wrong_with_an_option_and_where_to_look_are_two_sentences(call: Call) -> None:
    assert call("-d", "", "ls")[2] == "tiered: Invalid value: --directory is empty. See 'tiered --help'.\n"


@pytest.mark.parametrize(
    "command",
    ["put", "get", "head", "rm", "sync", "cp", "mv", "update-metadata", "set-expiry", "backup", "log abort", "log show",
     "feed view", "feed follow"],
)
def test_missing_arguments(call: Call, command: str) -> None:
    code, out, errors = call(*command.split())
    assert (code, out) == (2, "") and errors.startswith("tiered: Missing argument '")


@pytest.mark.parametrize("command", COMMANDS)
def test_shared_options_stand_behind_the_name_too_and_what_is_printed_is_json(store: Call, command: str) -> None:
    wanted = REFUSED.get(command, 0)
    behind = store(*command.split(), *COMMANDS[command], "--directory", "store", "--json")
    assert behind[0] == wanted, behind[2]
    if wanted == 0:
        assert json.loads(behind[1]) is not None
    else:
        assert behind[1] == "" and behind[2].startswith("tiered: ")
    group, _, name = command.rpartition(" ")
    assert store("-d", "store", "put", OBJECT, "payload")[0] == 0  # `mv` took it away
    assert store("--json", *[group, "-d", "store"][not group:], name, *COMMANDS[command], *[] if group else ["-d", "store"])[0] == wanted


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in WITHOUT_A_STORE])
def test_failure_prints_nothing_on_stdout_with_json_too_and_makes_no_store(call: Call, tmp_path: Path, command: str) -> None:
    code, out, errors = call(*command.split(), *COMMANDS[command], "--json", "-d", "nowhere")
    assert code in (2, 3) and out == ""
    assert errors.startswith("tiered: ") and errors.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()


# --- which store -----------------------------------------------------------------------------------


def test_two_stores_are_never_chosen_between(store: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.yaml").write_text("directory: store\n")
    (tmp_path / "two.yaml").write_text("directory: other\n")
    for arguments in ("-d store ls -d other", "-d store -d other ls", "-c one.yaml ls -c two.yaml"):
        code, _, errors = store(*arguments.split())
        assert code == 2 and "is given twice" in errors
    code, _, errors = store("-c", "one.yaml", "ls", "-d", "store")
    assert code == 2 and "either --config or --directory" in errors
    assert store("ls", "-d", "")[0] == 2
    assert store("-d", "store", "ls", "-d", str(tmp_path / "store"))[1] == f"{OBJECT}\n"
    assert store("-c", "one.yaml", "ls", "-c", "./one.yaml")[1] == f"{OBJECT}\n"
    monkeypatch.setenv("TIERED_DIRECTORY", "other")
    code, _, errors = store("-d", "store", "rm", OBJECT)
    assert code == 3 and "--directory store and TIERED_DIRECTORY other name two stores" in errors
    monkeypatch.setenv("TIERED_DIRECTORY", str(tmp_path / "store"))
    assert store("-d", "store", "ls")[1] == f"{OBJECT}\n"
    for section in (*ROW_SECTIONS, *BLOB_SECTIONS):
        with monkeypatch.context() as patched:
            patched.setenv(variable := f"TIERED_{section.upper()}__SOMETHING", "elsewhere")
            code, _, errors = store("-d", "store", "rm", OBJECT)
        assert code == 3 and f"names an embedded store, and {variable} one in a service: leave one out" in errors, section


def test_a_path_from_the_home_directory_is_found(store: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store("--directory=~/store", "ls", "-d", "store")[1] == f"{OBJECT}\n"


# --- odd arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "code"), [
    (["head", os.fsdecode(b"\xff/objects/x")], 3), (["head", "\x1b[31m/objects/\x07"], 1), (["head", "x" * 100_000], 3),
    (["head", ""], 3), (["head", "-x"], 2), (["head", "--", "-x"], 3), (["head", "--", "-x/objects/k"], 1), (["ls", "--limit", "0"], 2),
    (["ls", "--limit", "x"], 2), (["ls", "--limit", "9" * 5000], 2), (["ls", os.fsdecode(b"\xff")], 3), (["put", OBJECT, ""], 3),
    (["put", OBJECT, "x" * 5000], 3), (["put", OBJECT, "."], 3), (["put", OBJECT, os.fsdecode(b"no-\xff")], 3),
    (["put", OBJECT, "payload", "--ttl", ""], 3), (["put", OBJECT, "payload", "--ttl", "9" * 5000 + "d"], 3),
    (["put", OBJECT, "payload", "--ttl", "-1d"], 3), (["put", OBJECT, "payload", "--ttl", "0s"], 3),
    (["put", OBJECT, "payload", "--custom", "=x"], 3), (["put", OBJECT, "payload", "--content-type", ""], 3),
    (["put", OBJECT, "payload", "--content-type", os.fsdecode(b"\xff")], 3),
    (["put", OBJECT, "payload", "--custom", os.fsdecode(b"k=\xff")], 3), (["get", OBJECT, "--range", "9" * 5000 + ":"], 3),
    (["get", OBJECT, "--range", ""], 3), (["get", OBJECT, "-o", ""], 3), (["get", OBJECT, "-o", "x" * 256], 3),
    (["get", OBJECT, "-o", "payload/x"], 3), (["get", OBJECT, "-o", "new/"], 3), (["get", OBJECT, "-o", "."], 3),
    (["get", OBJECT, "-o", "loop"], 3), (["recover", "--once", "--limit", "-1"], 2), (["log", "show", "~changelog/" + "x" * 10_000], 1),
    (["log", "show", os.fsdecode(b"\xff")], 3), (["log", "show", os.fsdecode(b"~changelog/\xff")], 3),
    (["audit", "show", os.fsdecode(b"\xff")], 2), (["audit", "plan", "--grace", "9" * 5000 + "d"], 2), (["check", "extra"], 2),
    (["config", "show", "-d", "x" * 300], 2),
])  # fmt: skip
def test_odd_arguments_end_in_a_sentence_and_a_documented_code(store: Call, tmp_path: Path, arguments: list[str], code: int) -> None:
    (tmp_path / "loop").symlink_to("loop")
    given, out, errors = store("-d", "store", *arguments)
    assert (given, out) == (code, ""), errors
    assert errors.startswith("tiered: ") and "\x1b" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["feed", "loop", "payload", "store"]


@pytest.mark.parametrize("where", ["x" * 300, "payload", "payload/x", "/proc/nowhere", "~nobody-of-that-name/x"])
def test_a_directory_that_can_hold_no_store_is_refused(call: Call, where: str) -> None:
    for arguments in (["ls"], ["put", OBJECT, "payload"], ["check"], ["recover", "--once"]):
        code, out, errors = call("-d", where, *arguments)
        assert (code, out) == (3, "") and errors.startswith("tiered: "), errors


def test_a_directory_may_have_any_name_that_a_file_system_takes(call: Call) -> None:
    where = os.fsdecode(b"\xff")
    assert call("-d", where, "put", OBJECT, "payload")[0] == call("-d", where, "check")[0] == 0
    assert call("-d", where, "ls")[1] == f"{OBJECT}\n"
    assert call("-d", where, "config", "show")[0] == call("-d", where, "config", "show", "--json")[0] == 0


# --- content types ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), [
    ("x.json", "application/json"), ("photo.JPG", "image/jpeg"), ("x.webp", "image/webp"), ("x.json.gz", "application/gzip"),
    ("x.tar.bz2", "application/x-bzip2"), ("x.xz", "application/x-xz"), ("x.svgz", "application/gzip"),
    ("x.br", "application/octet-stream"),
    (".json", "application/octet-stream"), ("no-suffix", "application/octet-stream"), ("data:text,x", "application/octet-stream"),
])  # fmt: skip
def test_content_type_is_what_the_files_name_says(call: Call, tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_bytes(b"{}")
    assert call("-d", "store", "put", OBJECT, name)[0] == 0
    assert json.loads(call("-d", "store", "head", OBJECT, "--json")[1])["metadata"]["content_type"] == kind


# --- streams and surroundings ----------------------------------------------------------------------


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command("put", OBJECT, "-", stdin=b"payload")
    return command


def shell(tiered: Command, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a line in which $t is the command on the store."""
    given = tiered.environment | environment | {"t": f"{sys.executable} -m recovery.cli.main -d {tiered.store}"}
    root = str(ROOT)
    given["PYTHONPATH"] = os.pathsep.join(filter(None, (root, given.get("PYTHONPATH"))))
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, errors="replace", env=given, cwd=tiered.directory,
        timeout=120, check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("line", "code", "says"), [
    ("$t ls >&-", 4, "the output cannot be written: it is closed"),
    (f"$t get {OBJECT} >&-", 3, "stdout is closed; add --output FILE"),
    (f"$t get {OBJECT} -o >(cat)", 0, ""),
    pytest.param("$t head a/objects/absent 2>&-", 1, "", marks=pytest.mark.night),
    ("$t head a/objects/absent 2>/dev/full", 1, ""),
    ("$t put a/objects/x - <&-", 3, "stdin is closed; name a file"),
    ("mkdir gone && cd gone && rmdir ../gone && env -u HOME -u TERM -u LANG -u LC_ALL $t ls", 0, ""),
])
def test_streams_and_surroundings(tiered: Command, line: str, code: int, says: str) -> None:
    done = shell(tiered, line)
    assert DAMAGE not in done.stderr and done.returncode == code, done.stderr
    assert says in done.stderr if says else done.stderr == ""
    if f"get {OBJECT}" in line and code == 0:
        assert done.stdout == "payload"


@pytest.mark.slow
def test_what_a_terminal_cannot_show_is_spelt_out_and_json_stays_json(tiered: Command) -> None:
    tiered("put", "a/objects/猫é", "-")
    tiered.environment |= {"PYTHONIOENCODING": "ascii", "COLUMNS": "10"}
    shown, as_json = in_one_process(tiered, ["ls a/", "ls a/ --json", "nonsense é"], code=2)[0].splitlines()
    assert shown == "a/objects/\\u732b\\xe9" and json.loads(as_json)["object"] == "a/objects/猫é"


@pytest.mark.slow
def test_output_appended_to_keeps_what_was_there(tiered: Command) -> None:
    assert shell(tiered, f"echo before > out; $t get {OBJECT} -o /dev/stdout >> out; cat out").stdout == "before\npayload"


def test_the_longest_name_that_a_file_may_have_takes_a_payload(tiered: Command, tmp_path: Path) -> None:
    tiered("get", OBJECT, "-o", "x" * 255)
    assert (tmp_path / ("x" * 255)).read_bytes() == b"payload"
    assert not list(tmp_path.glob(".tiered-*"))


# --- start-up --------------------------------------------------------------------------------------


UNWANTED = {
    "google", "grpc", "aiohttp", "pyspark", "pyarrow", "jinja2", "rich", "yaml", "msgspec", "emulators",
    "tenacity", "prometheus_client", "opentelemetry",
}  # fmt: skip
OF_OTHER_COMMANDS = {
    "recovery.cli.audit.commands", "recovery.cli.recover", "recovery.cli.deployment", "recovery.cli.config", "recovery.cli.feed",
    "recovery.feed",
}  # fmt: skip
OF_STATUS = {"recovery.cli.status", "recovery.status.look", "recovery.statistics.persisted"}
OF_GOOGLES_CLIENTS = {"google.cloud.bigtable_admin_v2", "google.cloud.bigtable.data", "google.cloud.storage", "changelog.google.tokens"}
OF_DIRECTORIES = {"sqlite3", "changelog.sqlite.database", "tiered.embedded", "tiered.provision.embedded_store"}
SHOWS_MODULES = """
import gc, sys
from recovery.cli.main import main
code = 0
for line in ' '.join(sys.argv[1:]).split(' then '):
    sys.argv[1:] = line.split()
    try:
        main()
    except SystemExit as ended:
        code = code or ended.code
    print(*sys.modules, f'garbage={gc.get_threshold()[0]}', '', sep='\\n', end='\\0', file=sys.stderr)
sys.exit(code)
"""


def in_one_process(tiered: Command, lines: list[str], code: int = 0) -> tuple[str, list[set[str]]]:
    """Runs one command after another. What they print, and what is loaded after each."""
    tiered.environment["TIERED_DIRECTORY"] = str(tiered.store)
    out = tiered(" then ".join(lines), python=("-c", SHOWS_MODULES), code=code, store=False)
    return out, [set(told.splitlines()) for told in tiered.errors.split("\0")[:-1]]


@pytest.mark.slow
def test_a_command_imports_what_it_needs(tiered: Command) -> None:
    """What a command loads stays, so those that load more come later."""
    lines = [f"head {OBJECT}", "ls", "status", "log list", "check", "recover --once"]
    for line, loaded in zip(lines, in_one_process(tiered, lines)[1], strict=True):
        assert not {name.partition(".")[0] for name in loaded} & UNWANTED, line
        assert f"garbage={GARBAGE_MIN}" in loaded, "to set it back lets Python search all that was loaded"
        assert ("recovery.loop" in loaded) is (line == "recover --once") and "recovery.audit.manifest" not in loaded, line
        assert line in lines[2:] or not loaded & (OF_OTHER_COMMANDS | OF_STATUS), line


@pytest.mark.slow
def test_a_command_that_reads_from_google_does_not_load_the_clients_that_manage_tables(tmp_path: Path) -> None:
    """There is nobody to answer. What is loaded is the same."""
    nobody = "127.0.0.1:1"
    settings = {
        "TIERED_BIGTABLE__PROJECT": "project", "TIERED_BIGTABLE__INSTANCE": "instance", "TIERED_BIGTABLE__EMULATOR_HOST": nobody,
        "TIERED_GCS__BUCKET": "bucket", "TIERED_GCS__ENDPOINT": f"http://{nobody}", "TIERED_STORE__ANSWER_BUDGET_S": "0.01",
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", SHOWS_MODULES, "head", OBJECT], env=os.environ | settings, cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    loaded = set(ended.stderr.splitlines())
    assert ended.returncode == 4 and "google.cloud.bigtable_v2" in loaded, ended.stderr[:2000]
    assert not loaded & (OF_GOOGLES_CLIENTS | OF_DIRECTORIES)


@pytest.mark.slow
def test_without_its_libraries_the_command_says_what_to_install(tiered: Command) -> None:
    tiered("ls", python=("-c", "import sys; sys.modules['typer'] = None; from recovery.cli.main import main; main()"), code=3)
    assert tiered.errors == f"tiered: the command line needs typer; install it with: {installing('daemon')}\n"


# --- what is stuck ---------------------------------------------------------------------------------


def test_what_is_stuck_stays_an_error_until_it_is_given_back(store: Call, tmp_path: Path) -> None:
    plant(tmp_path / "store", "someone/objects/else")
    for once in (1, 0):
        code, out, errors = store("-d", "store", "recover", "--once", "--json")
        report = json.loads(out)
        assert (code, report["parked"], report["stuck"]) == (6, once, 1)
        assert "1 entry is stuck: `tiered -d store log list --stuck`" in errors and "tiered -d store log retry ID" in errors
    code, out, errors = store("-d", "store", "check", "--json")
    assert code == 6 and json.loads(out)["ok"] is False and "1 entry is stuck" in out and "1 entry is stuck" in errors
    assert "problem " in store("-d", "store", "check")[1]


def test_list_of_what_is_stuck_speaks_of_what_is_open(store: Call, tmp_path: Path) -> None:
    plant(tmp_path / "store", None)
    assert store("-d", "store", "log", "list", "--stuck")[1] == "no stuck entries (1 open)\n"
    assert store("-d", "store", "log", "list", "--stuck", "--json")[1] == "[]\n"


def test_lists_have_no_end_and_say_where_they_are_cut(store: Call, tmp_path: Path) -> None:
    for _ in range(3):
        plant(tmp_path / "store", None)
    for command in (["log", "list"], ["recover", "--dry-run"]):
        assert len(json.loads(store("-d", "store", *command, "--json")[1])) == 3
        code, out, errors = store("-d", "store", *command, "--json", "--limit", "2")
        assert code == 0 and json.loads(out)[2] == {"more": True} and errors == "tiered: there are more than --limit 2\n"
        assert store("-d", "store", *command, "--limit", "3")[2] == ""
    assert store("-d", "store", "ls", "--limit", "1")[2] == ""
    assert json.loads(store("-d", "store", "recover", "--once", "--limit", "2", "--json")[1])["more"] == "maybe"


def test_more_entries_than_a_page_are_all_listed(store: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.entries.PAGE", 2)
    monkeypatch.setattr("recovery.cli.entries.TABLE_ROWS", 3)
    planted = {plant(tmp_path / "store", None) for _ in range(5)}
    assert {each["id"] for each in json.loads(store("-d", "store", "log", "list", "--json")[1])} == planted
    header, *rows = store("-d", "store", "log", "list")[1].splitlines()
    assert header.startswith("id ") and {row.split()[0] for row in rows} == planted
    assert len(store("-d", "store", "recover", "--dry-run")[1].splitlines()) == 6


def test_times_of_an_entry_are_times(store: Call, tmp_path: Path) -> None:
    change = plant(tmp_path / "store", "someone/objects/else")
    store("-d", "store", "recover", "--once")
    shown = json.loads(store("-d", "store", "log", "show", change, "--json")[1])
    assert shown["heartbeat"].endswith("+00:00") and shown["stuck"]["at"].endswith("+00:00") and shown["cleanup_after"] is None
    assert shown["heartbeat"] in store("-d", "store", "log", "show", change)[1]


# --- places that are URIs --------------------------------------------------------------------------

URIS: dict[str, list[str]] = {
    "audit run --to": ["--engine", "local", "--to", "URI"], "audit run --since": ["--engine", "local", "--to", "new", "--since", "URI"],
    "audit show --from": [OBJECT, "--from", "URI"], "audit delete RUN": ["URI", "--class", "orphan"], "audit restore RUN": ["URI"],
    "feed run --to": ["--once", "--to", "URI"], "feed view FILE...": ["URI"], "feed check FILE...": ["URI"],
    "feed convert IN": ["URI", "out", "--to", "json"], "feed convert OUT": ["feed/0.txt", "URI", "--to", "json"],
    "feed follow DIR": ["URI", "--until-idle", "0"], "feed receive DIR": ["URI"],
    "export objects --to": ["--to", "URI"], "export table --to": ["--to", "URI"], "export verify PLACE": ["URI"], "import SOURCE": ["URI"],
}
"""Each place of a command that is a URI, or that somebody may take for one."""
PLACES = {"RUN", "PLACE", "SINK", "FILE...", "SOURCE", "DIR", "IN", "OUT"}
NO_URI = {"prove --out", "provision --location", "sync SOURCE", "cp SOURCE", "mv SOURCE"}
"""A region; a directory, or names of the store."""
SECRET = "hush"
SECRETS = (f"s3://KEY:{SECRET}@bucket/x", f"s3://KEY:a/{SECRET}@bucket/x", f"S3:KEY:{SECRET}@bucket/x", f"hdfs://me:{SECRET}@host:8020/x",
           f"abfss://files:{SECRET}@account/x", f"gs://{SECRET}@bucket/x", f"https://me:{SECRET}@host/x")  # fmt: skip


def test_every_place_that_may_be_a_uri_is_in_the_table() -> None:
    def places(within: TyperGroup, before: str = "") -> Iterator[str]:
        for name, each in within.commands.items():
            if isinstance(each, TyperGroup):
                yield from places(each, f"{before}{name} ")
                continue
            for parameter in each.params:
                is_place = parameter.metavar in PLACES or "://" in (getattr(parameter, "help", None) or "")
                if is_place and parameter.name not in ("config", "directory"):
                    long = [option for option in parameter.opts if option.startswith("--")]
                    yield f"{before}{name} {long[0] if long else parameter.metavar}"

    program = get_command(app)
    assert isinstance(program, TyperGroup)
    assert sorted(places(program)) == sorted([*URIS, *NO_URI])


@pytest.mark.parametrize("place", URIS)
def test_no_place_repeats_the_password_of_a_uri(store: Call, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("TIERED_FEED__ENABLED", "true")
    command = place.rpartition(" ")[0]
    for uri in SECRETS:
        if command == "feed run" and uri.startswith("https"):
            continue  # a sink may have them: `tiered.sinks` takes it apart
        code, out, errors = store("-d", "store", *command.split(), *(uri if part == "URI" else part for part in URIS[place]))
        assert code, f"{place} {uri}"
        assert SECRET not in out + errors, f"{place} {uri}: {out}{errors}"
        assert f"{uri.partition(':')[0].lower()}://" in errors, f"{place} {uri}: {errors}"
