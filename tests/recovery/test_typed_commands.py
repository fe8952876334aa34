"""Commands within sentences, as they are typed."""

from __future__ import annotations

import pytest

from recovery.feed.writer.checkpoint import FIX
from recovery.feed.writer.writer import NEW_GENERATION
from recovery.typed_commands import typed, with_typed

STORE = "tiered -c 'my settings.yaml'"


@pytest.mark.parametrize(("sentence", "shown"), [
    ("run 'tiered provision --location EU', or wait", f"run `{STORE} provision --location EU`, or wait"),
    ("'tiered log list' says why; 'tiered log retry ID' helps", f"`{STORE} log list` says why; `{STORE} log retry ID` helps"),
    ("the row 'tiered/objects/k' is damaged; 'tiered' and 'tiered.yaml' stay", None),
    ("the object 'tiered rmdir' is none, and tiered check is not quoted", None),
])  # fmt: skip
def test_only_commands_that_are_quoted_are_shown_as_typed(sentence: str, shown: str | None) -> None:
    assert with_typed(sentence, STORE) == (shown or sentence)
    assert with_typed(sentence, "tiered") == sentence, "no store was named"


@pytest.mark.parametrize("sentence", [NEW_GENERATION, FIX])
def test_the_feed_told_a_command_that_meant_no_store(sentence: str) -> None:
    assert f"`{STORE} feed run --new-generation`" in with_typed(sentence, STORE)


def test_a_command_begins_with_what_means_the_store() -> None:
    assert typed("tiered log retry x", STORE) == f"{STORE} log retry x" and typed(None, STORE) is None
