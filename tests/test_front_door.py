"""README, tutorial and guides are walked by a stranger, who has the wheel alone and nothing of the checkout.

Every block of Python and every command of a page is run, in order, in a directory of the page's own. An extra and a
package are installed where the page says so. A guide's example is there because the page says to put it there. What
needs a service is run up to its options, or imported. What needs the checkout is left out; its section must say so.
Each page has an environment of its own: an extra that only another page installs is missing.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import pytest

from tests.given.installed import UV, alone
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT

GUIDES = tuple(sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/guides").glob("*.md")))
PAGES = ("README.md", "docs/tutorial.md", *GUIDES)

CHECKOUT = re.compile(r"\bmake |-m emulators|deploy/")
SERVICES = re.compile(r"\bprovision\b|\bprove --yes\b|\bhand-back\b|gs://|broker:|objectstore\.yaml|change/")
"""Commands of which only the options are tried."""
READY = {"uvicorn": "Application startup complete", "gunicorn": "Booting worker", "celery": " ready.", "tiered": ""}
READY_S = 120.0
"""Within so many seconds a server must have come up."""
SETTINGS, WITH_FEED = "directory: data\n", "directory: data\nfeed: {enabled: true, to: feed}\n"


@dataclass(frozen=True)
class Block:
    """`section`: the text of the page from the last heading to the block. `language`: empty for commands."""

    section: str
    language: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        yield Block(re.split(r"(?m)^#+ ", page[: match.start()])[-1], match[1], match[2])


@dataclass(frozen=True)
class Stranger:
    """Who has the programs of an environment with the wheel, and a directory."""

    wheel: Path
    programs: Path
    directory: Path
    port: int

    def run(self, *command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment(), text=True, capture_output=True, stdin=subprocess.DEVNULL,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def environment(self) -> dict[str, str]:
        """A stranger's own directory is on the path, as it is for whoever types `python`. The checkout is not."""
        own = {name: value for name, value in alone().items() if name != "PYTHONSAFEPATH" and not name.startswith("TIERED_")}
        return own | {"PATH": f"{self.programs}:{os.environ['PATH']}", "PYTHONPATH": str(self.directory)}

    def install(self, *what: str) -> None:
        """`.[…]` is the wheel with extras, which it must have. Versions are today's."""
        asked = {extra for each in what if (given := re.match(r"\.\[(.*)\]", each)) for extra in given[1].split(",")}
        assert asked <= self.extras(), f"the wheel has no extra {asked - self.extras()}"
        wanted = [re.sub(r"^\.(?=\[|$)", str(self.wheel), each) for each in what]
        told = subprocess.run(
            [UV, "pip", "install", "--python", self.programs / "python", *wanted],
            cwd=self.directory, env=alone(), text=True, capture_output=True, timeout=600, check=False,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr

    def extras(self) -> set[str]:
        with ZipFile(self.wheel) as wheel:
            [metadata] = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
            return set(re.findall(r"(?m)^Provides-Extra: (\S+)$", wheel.read(metadata).decode()))


@pytest.fixture
def stranger(wheel: Path, tmp_path: Path) -> Iterator[Stranger]:
    with TemporaryDirectory(prefix="front-door-") as made, socket.create_server(("127.0.0.1", 0)) as free:  # not in memory, as tmp_path
        environment, port = Path(made), free.getsockname()[1]
        free.close()
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], env=alone(), timeout=300, check=True)
        stranger = Stranger(wheel, environment / "bin", tmp_path, port)
        stranger.install(".[daemon]")
        seen = stranger.run("python", "-c", "import importlib.util as i; print(*map(i.find_spec, ('emulators', 'tests')))")
        assert seen == "None None\n"
        yield stranger


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_every_block_of_a_page_runs_where_only_the_wheel_is_installed(page: str, stranger: Stranger) -> None:
    text = (ROOT / page).read_text("utf-8")
    furnish(page, text, stranger)
    ran = walk(text, stranger)
    assert ran >= 1, "the page has nothing to run"


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("```python\nimport emulators\n```\n", "No module named 'emulators'"),
        ("```python\nfrom tiered import NoSuchName\n```\n", "cannot import name 'NoSuchName'"),
        ("```\ntiered --directory data ls --no-such-option\n```\n", "No such option"),
        ("```\ntiered --config tiered.yaml provision --no-such-option\n```\n", "No such option"),
        ("```\npip install '.[nothing]'\n```\n", "the wheel has no extra"),
        ("```\ntouch x; tiered -d data put a/objects/b x\ntiered -d data audit run --engine local\n```\n", r"'\.\[audit\]'"),
        ("```\nmake demo\n```\n", "its section must say"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "the page says that it prints"),
    ],
)
def test_a_page_with_a_planted_fault_is_found(fault: str, told: str, stranger: Stranger) -> None:
    with pytest.raises(AssertionError, match=told):
        walk(f"# A page\n\n{fault}", stranger)


def test_a_store_is_backed_up_and_restored_by_the_commands_of_the_page(stranger: Stranger) -> None:
    section = (ROOT / "docs/production.md").read_text("utf-8").partition("### Backup and restore")[2].partition("\n## ")[0]
    commands = [line.partition(" #")[0] for line in re.findall(r"(?m)^\$ (.*)$", section)]
    assert [each for each in commands if " backup " in each] and [each for each in commands if each.startswith("mv store store.broken")]
    (stranger.directory / "elsewhere").mkdir()
    stranger.install(".[audit]")
    feed = "export TIERED_FEED__ENABLED=true TIERED_FEED__TO=feed; "
    (stranger.directory / "program.py").write_bytes(os.urandom(3_000_000))
    for name in ("kept", "replaced"):
        stranger.run("bash", "-c", f"{feed} tiered -d store put a/objects/{name} program.py")
    kept = stranger.run("tiered", "-d", "store", "head", "a/objects/replaced")
    stranger.run("bash", "-c", f"{feed} tiered -d store feed run --once")
    printed = []
    for command in commands:
        if command.startswith("mv store"):  # what the backup brings back
            stranger.run("bash", "-c", f"{feed} echo other | tiered -d store put a/objects/replaced -; tiered -d store rm a/objects/kept")
        here = re.sub(r"elsewhere:/backups/", "elsewhere/", command).replace("/var/lib/tiered/", "").replace("/var/feed", "feed")
        printed.append(stranger.run("bash", "-c", feed + here.replace("rsync -a", "cp -a")))
    assert stranger.run("tiered", "-d", "store", "head", "a/objects/replaced") == kept
    assert stranger.run("tiered", "-d", "store", "get", "a/objects/kept", "-o", "copy") == ""
    assert (stranger.directory / "copy").read_bytes() == (stranger.directory / "program.py").read_bytes()
    assert "seen 0" in "".join(printed) and "2 records at the frontier" in printed[-1]


# --- the walk ----------------------------------------------------------------------------------------------


def furnish(page: str, text: str, stranger: Stranger) -> None:
    """Makes what the page says the reader has: the linked examples, a file, a store with an object, and its feed."""
    for name in {*re.findall(r"\.\./\.\./(examples/\w+\.\w+)", text), *re.findall(r"<!-- code (examples/\w+\.\w+)", text)}:
        (stranger.directory / "examples").mkdir(exist_ok=True)
        (stranger.directory / name).write_bytes((ROOT / name).read_bytes())
    if page not in GUIDES:
        return
    (stranger.directory / "tiered.yaml").write_text(WITH_FEED if "/var/feed" in text else SETTINGS)
    for name in ("cat.jpg", "srv/photos/cat.jpg"):
        (stranger.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (stranger.directory / name).write_bytes(b"cat" * 1000)
    stranger.run("tiered", "--config", "tiered.yaml", "put", "photos/objects/cat.jpg", "cat.jpg")
    if "/var/feed" in text:
        stranger.run("tiered", "--config", "tiered.yaml", "feed", "run", "--once")


def walk(text: str, stranger: Stranger) -> int:
    """Runs the blocks of a page in order. Returns how many blocks of Python and commands were run."""
    program, printed, ran = "", "", 0
    with ExitStack() as servers:
        for block in blocks(text):
            if block.language == "python" and not text[: text.index(block.text)].rstrip().endswith("-->\n```python"):
                program, ran = program + block.text + "\n", ran + 1
            elif block.language == "text":
                printed += block.text
            elif block.language == "" and CHECKOUT.search(block.text):
                assert re.search("checkout", block.section, re.IGNORECASE), f"its section must say 'checkout':\n{block.text}"
            elif block.language == "" and not block.text.startswith(("$", " ")):
                run_program(program, printed, stranger)  # a command may need what it made
                program = printed = ""
                for command in filter(None, (line.partition(" #")[0].strip() for line in block.text.splitlines())):
                    do(command, stranger, servers)
                    ran += 1
        run_program(program, printed, stranger)
    return ran


def run_program(program: str, printed: str, stranger: Stranger) -> None:
    """Runs the blocks of Python that came up to here, as one file. `printed`: what the page says that they print."""
    if program:
        (stranger.directory / "program.py").write_text(program)
        told = stranger.run("python", "program.py")
        assert not printed or told == printed, f"the page says that it prints\n{printed}\nand it prints\n{told}"


def do(command: str, stranger: Stranger, servers: ExitStack) -> None:
    words = [each for each in shlex.split(command) if not re.match(r"[A-Z_]+=", each)]
    if words[:2] == ["pip", "install"]:
        stranger.install(*words[2:])
    elif SERVICES.search(command) and words[0] == "python":
        stranger.run("python", "-c", f"import runpy; runpy.run_path({words[1]!r})")
    elif SERVICES.search(command):
        stranger.run("bash", "-c", f"{command} --help")
    elif words[0] in READY and (words[0] != "tiered" or ("recover" in words and "--once" not in words)):
        servers.enter_context(served(command, words, stranger))
    else:
        here = command.replace(":8000/", f":{stranger.port}/").replace("/srv/", "srv/").replace("/var/feed", "feed")
        stranger.run("bash", "-c", here.replace("curl ", "curl --fail --silent --show-error "))


def lives(options: list[str], stranger: Stranger) -> bool:
    """Whether a daemon of the store lives. The store may not be there yet, because the daemon is about to make it."""
    status = ("tiered", *options, "status")
    done = subprocess.run(
        status, cwd=stranger.directory, env=stranger.environment(), text=True, capture_output=True, timeout=60, check=False
    )
    return done.returncode == 0 and "none lives" not in done.stdout


@contextmanager
def served(command: str, words: list[str], stranger: Stranger) -> Iterator[None]:
    """A server of the page, until its end. It must come up, and end by SIGTERM."""
    at = {"uvicorn": f"uvicorn --port {stranger.port}", "gunicorn": f"gunicorn --bind 127.0.0.1:{stranger.port}"}
    for name, there in at.items():
        command = re.sub(rf"\b{name} ", f"{there} ", command, count=1)
    command = re.sub(r"--http-port \d+", "--http-port 0", command)
    command = f"{command} --loglevel INFO" if words[0] == "celery" else command
    with StartedProcess(
        ["bash", "-c", f"exec env {command}"], cwd=stranger.directory, env=stranger.environment() | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        late = threading.Timer(READY_S, process.kill)
        late.start()
        try:
            said = ""
            while words[0] != "tiered" and READY[words[0]] not in said:
                line = process.stdout.readline()
                said += line
                assert line, f"{command} ended:\n{said}"
            if words[0] == "tiered":
                while not lives(words[1:3], stranger):
                    assert process.poll() is None, process.stdout.read()
            late.cancel()
            yield
        finally:
            late.cancel()
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGTERM), f"{command} ended with {process.returncode}:\n{rest}"
