"""`tiered feed run`: bad input is one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.given.command_line import Command


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command.environment |= {"TIERED_FEED__ENABLED": "true", "TIERED_INLINE_BYTES_MAX": "16"}
    command("put", "photos/org.1/objects/a", "-", stdin=b"x" * 100)
    return command


@pytest.mark.parametrize(("to", "said"), [
    (["store"], "is in the directory of the store"), (["store/blobs/feed"], "is in the directory of the store"),
    (["link/feed"], "is in the directory of the store"), ([""], "the place of the feed is ''"),
    (["out", "./out/"], "are the same place"), (["file"], "a file is where a directory should be"),
    (["no/such/out"], "there is no directory"), (["ftp://host/out"], "is no place for a feed"),
    (["https://u:hush@host/a?token=hush"], "host"), (["kafka://u:hush@host:9092/a"], "names no topic"),
])  # fmt: skip
def test_a_place_that_is_none_is_one_sentence(tiered: Command, to: Sequence[str], said: str) -> None:
    (tiered.directory / "file").write_bytes(b"x")
    (tiered.directory / "link").symlink_to(tiered.store)
    options = [option for place in to for option in ("--to", place)]
    tiered("feed", "run", "--once", *options, code=3)
    assert said in tiered.errors
    assert "hush" not in tiered.errors
    assert not list(tiered.store.glob("**/generation-*"))
