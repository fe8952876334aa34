"""The rows of a feed's files, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from changelog.base.errors import ConfigurationError
from recovery.feed import Progress, Update, Updates
from recovery.feed.files import FileFormat, write
from recovery.sources import feed_files
from recovery.sources.columns import FEED, batch_of


def told(directory: Path, name: str) -> list[dict[str, Any]]:
    return [dict(zip(FEED, row, strict=True)) for page in feed_files.rows(str(directory), name) for row in page]


def test_each_update_and_each_progress_message_is_a_row(tmp_path: Path) -> None:
    updates = Updates((Update({"b": "ü", "a": 1}, 7, -2), Update("é", 8, 1)))
    write(tmp_path / "a.avro", [Progress((7,), (), ((7, 1), (8, 1)))], FileFormat.AVRO, generation=3)
    write(tmp_path / "b.json", [updates, Progress((), (), ())])
    [closing] = told(tmp_path, "a.avro")
    assert (closing["kind"], closing["generation"], closing["lower"], closing["upper"]) == ("progress", 3, 7, None)
    assert closing["counts"] == [{"time": 7, "count": 1}, {"time": 8, "count": 1}] and closing["error"] is None
    first, second, last = told(tmp_path, "b.json")
    assert [(row["file"], row["place"], row["data"], row["time"], row["diff"]) for row in (first, second)] == [
        ("b.json", "line 1", '{"a":1,"b":"ü"}', 7, -2), ("b.json", "line 1", '"é"', 8, 1),
    ]  # fmt: skip
    assert (last["place"], last["lower"], last["upper"], last["counts"]) == ("line 2", None, None, [])
    batch = batch_of(FEED, [tuple(row.values()) for row in (closing, first, last)], ("counts", "data"))
    assert batch.to_pydict() == {"counts": [closing["counts"], None, []], "data": [None, first["data"], None]}


def test_what_was_read_of_a_damaged_file_is_told_and_then_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_files, "PAGE", 2)
    write(tmp_path / "a", [Progress((time,), (time + 1,), ()) for time in range(5)])
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-3])
    *good, broken = told(tmp_path, "a")
    assert [row["lower"] for row in good] == [0, 1, 2, 3] and broken["kind"] == "error" and broken["file"] == "a"
    assert broken["error"].startswith(f"{tmp_path}/a, line 5: ") and "(rule whole: " in broken["error"]
    assert [len(page) for page in feed_files.rows(str(tmp_path), "a")] == [2, 2, 1]


def test_a_directory_that_is_no_feed_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "_draft").touch()
    with pytest.raises(ConfigurationError, match="has no files: give the directory of a feed"):
        feed_files.names_of(str(tmp_path))
    with pytest.raises(ConfigurationError, match="there is no directory"):
        feed_files.names_of(str(tmp_path / "none"))
    (tmp_path / "below").mkdir()
    with pytest.raises(ConfigurationError, match="below is a directory, and a feed is files only"):
        feed_files.names_of(str(tmp_path))
