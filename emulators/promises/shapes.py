"""The JSON that a source tree prints and serves: every key with its type, as a short walk through a store meets them.

`surface.py` runs it, in a process of its own. Every command with `--json` runs on a store in a directory: one with
small and large objects, a change feed, an audit and an export. The daemon's server answers with statuses that were made
by hand (`tests/given/shown_status.py` of the tree), because only they have stuck entries, several daemons and failing
sinks.

A key whose value was null throughout has no type, and is held to its name alone.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

ONE, TWO, LARGE = "photos/objects/a", "photos/objects/b", "photos/objects/large"
SETTINGS = "directory: store\nfeed: {enabled: true}\n"
WALK: tuple[tuple[str, ...], ...] = (
    ("put", ONE, "small"), ("put", LARGE, "large"), ("put", LARGE, "large"), ("ls",), ("ls", "photos"), ("head", ONE), ("head", LARGE),
    ("get", ONE, "-o", "out"), ("cp", ONE, TWO), ("mv", TWO, "photos/objects/c"), ("update-metadata", ONE, "--content-type", "text/plain"),
    ("set-expiry", ONE, "--from-creation", "36h"), ("sync", "made", "photos/objects/none"), ("sync", "made", "photos/objects/none"),
    ("status",), ("check",), ("provision",), ("config", "show"), ("recover", "--once"), ("recover", "--dry-run"), ("log", "list"),
    ("log", "show", "ENTRY"), ("log", "retry", "--all"), ("feed", "run", "--once", "--to", "feed"), ("feed", "status"),
    ("feed", "check", "GENERATION"), ("feed", "view", "GENERATION"), ("feed", "follow", "GENERATION", "--until-idle", "0"),
    ("audit", "show", LARGE), ("put", ONE, "small", "--if-absent"), ("rm", ONE),
)  # fmt: skip
"""ENTRY is the id of an entry that `log list` has shown; GENERATION is the folder that `feed run` has made."""
LONG_WALK: tuple[tuple[str, ...], ...] = (
    ("put", ONE, "small"), ("put", LARGE, "large"), ("audit", "plan"),
    ("audit", "run", "--engine", "local", "--to", "audits", "--parallel", "1"),
    ("audit", "show", LARGE), ("status",), ("export", "objects", "--to", "exported"),
)  # fmt: skip
"""What needs pyarrow and a process of its own: as long as all the rest together, so `make test` leaves it out."""

ADDRESSES = ("/readyz", "/status.json", "/recent.json")

_NAME = re.compile(r"[A-Za-z][\w.]*")
"""Other keys are names of instances and services, and no words of ours."""

Found = dict[str, set[str]]


def shapes(*, long: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each key with its type. `long`: also what audits and exports print."""
    with TemporaryDirectory() as directory, chdir(directory):
        walked = _walked((*WALK, *LONG_WALK) if long else WALK)
    for where, found in (walked | _served()).items():
        yield f"JSON of {where}", {}
        for path, types in found.items():
            told = types - {"null"}
            yield f"JSON of {where}: {path}", {"type": " or ".join(sorted(told))} if told else {}


def _walked(walk: Iterable[tuple[str, ...]]) -> dict[str, Found]:
    Path("tiered.yaml").write_text(SETTINGS)
    Path("small").write_bytes(b"x" * 10)
    Path("large").write_bytes(b"y" * 2_000_000)
    Path("made").mkdir()
    Path("made/file").write_bytes(b"z")
    walked: dict[str, Found] = defaultdict(lambda: defaultdict(set))
    entry = ""
    for words in walk:
        command = " ".join(words[:2] if words[0] in ("log", "feed", "audit", "export", "config") else words[:1])
        for value in _called(*(_named(word, entry) for word in words)):
            if command == "log list" and value:
                entry = value[0]["id"]
            _add(walked[f"tiered {command}"], "", value)
    return dict(walked)


def _named(word: str, entry: str) -> str:
    if word == "GENERATION":
        [found] = Path("feed").glob("generation-*")
        return str(found)
    return entry if word == "ENTRY" else word


def _called(*words: str) -> list[Any]:
    """The values that the command printed. A condition that does not hold prints one, too."""
    from recovery.cli.app import run
    from recovery.cli.shared import choice

    choice.config = choice.directory = None
    choice.json = choice.verbose = False
    printed, said = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    others = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
    with (
        patch.dict(os.environ, others, clear=True), patch.object(sys, "argv", ["tiered", *words, "--json", "-c", "tiered.yaml"]),
        redirect_stdout(printed), redirect_stderr(said),
    ):  # fmt: skip
        code = run()
    values = list(_values(printed.buffer.getvalue().decode()))
    if not values:
        sys.exit(f"'tiered {' '.join(words)} --json' printed nothing, and ended with {code}: {said.buffer.getvalue().decode()}")
    return values


def _values(text: str) -> Iterator[Any]:
    """The JSON values in the text, one after another."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value
        at += len(text[at:]) - len(text[at:].lstrip())


def _served() -> dict[str, Found]:
    """What the daemon's server answers."""
    import anyio

    served: dict[str, Found] = {}
    anyio.run(_ask, served)
    return served


async def _ask(served: dict[str, Found]) -> None:
    import httpx

    from tests.given import shown_status

    for status in (shown_status.healthy(), shown_status.stuck(), shown_status.fed(), shown_status.unanswered()):
        shown = shown_status.ShownStatus(status, show_objects=True)
        await shown.sample()
        transport = httpx.ASGITransport(shown.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
            for address in ADDRESSES:
                _add(served.setdefault(address, defaultdict(set)), "", (await browser.get(address)).json())


def _add(found: Found, path: str, value: Any) -> None:
    if path:
        found[path].add(_type(value))
    if isinstance(value, Mapping):
        for key, each in value.items():
            _add(found, f"{path}.{key if _NAME.fullmatch(key) else 'NAME'}".lstrip("."), each)
    elif isinstance(value, list):
        for each in value:
            _add(found, f"{path}[]", each)


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "number"
        case str():
            return "text"
        case _:
            return "list" if isinstance(value, list) else "object"
