"""`hidden`: a text without anything that names something of the user's, so that a report can be sent to others.

What a service says may hold anything: a key, an account, the id of a request. No list of names has all of that. So a
text keeps the words of this program's own sentences, and small numbers; each other word becomes `…`. Its own sentences
stay whole, whatever the user's bucket is called: `rows` in them is our word. What the settings name, and no sentence
has, is taken out before, also where it is made of our words.

*Failure*: where this program's source is not at hand, it has no words, and all is hidden.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote

from pydantic import BaseModel, SecretStr

from recovery.redaction import HIDDEN
from tiered.settings import Settings

ROOT = Path(__file__).parents[2]
SOURCES = (
    "recovery/prove/**/*.py", "tiered/provision/*.py", "tiered/kinds/*.py", "tiered/errors.py",
    "tiered/testing/contracts/*.py", "changelog/**/*.py",
    *(f"tiered/{tier}/*.py" for tier in ("bigtable", "postgres", "gcs", "s3", "embedded", "buckets", "services", "transfer")),
)  # fmt: skip
"""Whose sentences a report may have: of what tries, and of the adapters whose errors it meets."""

_WORD = re.compile(r"""[^\s"'`()\[\]{}<>,;|=…]+""")
_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d{1,6})(\.\d{1,6})?(ms|s|%)?")
_ENDS = ".:!?-"
NAME_MIN = 3
"""A shorter value of a setting names nothing."""


def hidden(text: str, settings: Settings) -> str:
    for name in sorted(names_of(settings), key=len, reverse=True):
        text = re.sub(re.escape(name), HIDDEN, text, flags=re.IGNORECASE)
    return _WORD.sub(_kept, text)


def names_of(settings: Settings) -> set[str]:
    """What the settings say in text, whole and in parts, as it is and percent-encoded, but for this program's words."""
    found: set[str] = set()
    for value in _values(settings):
        for each in {value, unquote(value), *re.split(r"[/\\:@,?&=\s]+", value), *re.split(r"[/\\:@,?&=\s]+", unquote(value))}:
            found |= {each, quote(each, safe=""), quote(each), repr(each)[1:-1]}
    return {each for each in found if len(each) >= NAME_MIN and each.lower() not in _own()[0] and not _NUMBER.fullmatch(each)}


def _values(value: object) -> Iterator[str]:
    match value:
        case BaseModel():
            for name in type(value).model_fields:
                yield from _values(getattr(value, name))
        case SecretStr():
            yield value.get_secret_value()
        case str() | Path():
            yield str(value)
        case Mapping():
            for key, each in value.items():
                yield from _values(key)
                yield from _values(each)
        case tuple() | list():
            for each in value:
                yield from _values(each)


def _kept(found: re.Match[str]) -> str:
    """The word if it is this program's, or a small number."""
    word = found[0].strip(_ENDS)
    own = not word or word.lower() in _own()[1] or word.lower().removesuffix("s") in _own()[1] or _NUMBER.fullmatch(word)
    return found[0] if own else found[0].replace(word, HIDDEN)


@cache
def _own() -> tuple[str, frozenset[str]]:
    """All that this program says, in lower case: the texts, and the words in them."""
    said: list[str] = []
    for pattern in SOURCES:
        for path in ROOT.glob(pattern):
            said += _said_in(path.read_text("utf-8"))
    text = "\n".join(said).lower()
    return text, frozenset(word.strip(_ENDS) for word in _WORD.findall(text))


def _said_in(source: str) -> Iterator[str]:
    """The texts of a module but for its docstrings, and the names of its tests."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name
