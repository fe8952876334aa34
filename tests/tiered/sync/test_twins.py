"""The blocking API is made from the asynchronous one, and nobody has changed what was made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tiered.storage
from tests.tiered.sync import twins

SOURCES = {str(twin.module.__file__) for made in twins.MODULES.values() for twin in made}


@pytest.mark.parametrize("stem", twins.MODULES)
def test_what_was_made_is_what_would_be_made_now(stem: str) -> None:
    """`python -m tests.tiered.sync.twins`"""
    assert (twins.FOLDER / f"{stem}.py").read_text() == twins.source(stem)


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in (*twins.WORDS, *twins.TYPES)])
def test_every_rule_for_words_and_types_is_needed(pattern: str) -> None:
    assert any(re.search(pattern, re.sub(r"\s+", " ", Path(source).read_text())) for source in SOURCES)


def test_a_method_that_is_added_gets_a_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a payload and a function, and returns what has a twin: each of these blocks in its own way."""
    added = '''
    async def exchange(
        self, object_id: ObjectId, payload: Payload, *, progress: Progress | None = None, first: bool = False
    ) -> MultipartUpload:
        """Waits until the caller is cancelled.

        Args:
            payload: Bytes, or an iterator or async iterator.
                What blocks is read in a thread of its own.
            progress: Called in the event loop, and may be an async function.
        """
'''
    source = tmp_path / "storage.py"
    text = Path(str(tiered.storage.__file__)).read_text()
    source.write_text(text.replace("    async def delete(", added.lstrip("\n") + "\n    async def delete(", 1))
    monkeypatch.setattr(tiered.storage, "__file__", str(source))
    made = twins.source("storage")
    start = made.index("    def exchange")
    assert made[start:made.index("    def delete(")].rstrip() == '''\
    def exchange(
        self, object_id: ObjectId, payload: Payload, *, progress: Progress | None = None, first: bool = False
    ) -> SyncMultipartUpload:
        """Waits until the caller is interrupted.

        Args:
            payload: Bytes, or an iterator. What blocks is read in your own thread.
            progress: Called in your own thread.
        """
        thread = self._calls.thread()
        call = partial(self._storage.exchange, object_id, body(payload, thread), progress=thread.callback(progress), first=first)
        made = self._calls.call(call, thread)
        return SyncMultipartUpload(made, self._calls)'''
