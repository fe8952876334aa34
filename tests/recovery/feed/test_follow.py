"""A directory of feed files that grow (recovery/feed/follow.py)."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from changelog.base.errors import InvalidRequestError
from recovery.feed import FeedError, Message, Progress, Rule, Update, Updates
from recovery.feed.avro import schema
from recovery.feed.files import FileFormat, write
from recovery.feed.follow import Following

STRING = schema("string")
Look = Callable[[], list[Message]]


@pytest.fixture
def following(tmp_path: Path) -> Following:
    return Following(tmp_path)


@pytest.fixture
def look(following: Following) -> Look:
    return lambda: [located.message for located in following.look()]


def one(record: str, time: int = 0) -> Updates:
    return Updates((Update(record, time, 1),))


def test_lines_are_read_once_and_the_last_one_only_when_it_is_whole(tmp_path: Path, following: Following, look: Look) -> None:
    assert look() == []
    with (tmp_path / "feed.txt").open("a", buffering=1) as file:
        file.write("update (a, time0, +1)\n\nupdate (b, ti")
        file.flush()
        assert look() == [one("a")] and following.unfinished == ["feed.txt"]
        assert look() == []
        file.write("me0, +1)\nprogress (time0, 2)\n")
        file.flush()
        assert look() == [one("b"), Progress((0,), (1,), ((0, 2),))] and following.unfinished == []
    (tmp_path / "new.json").write_text('{"array":[{"data":"c","time":1,"diff":1}]}\n')
    assert look() == [one("c", 1)]


def test_an_error_names_the_line_of_the_file_and_not_of_the_look(tmp_path: Path, look: Look) -> None:
    feed = tmp_path / "feed.txt"
    feed.write_text("update (a, time0, +1)\n")
    look()
    with feed.open("a") as file:
        file.write("\nnonsense\n")
    with pytest.raises(FeedError) as refused:
        look()
    assert refused.value.rule is Rule.FORM and refused.value.where == f"{feed}, line 3"


@pytest.mark.parametrize(("content", "rule"), [(b"\xff\xfe\n", Rule.FORM), (b'{"record":"a","delta":1}\n', Rule.FORM)])
def test_what_is_no_line_of_a_feed_is_refused(tmp_path: Path, look: Look, content: bytes, rule: Rule) -> None:
    (tmp_path / "feed").write_bytes(content)
    with pytest.raises(FeedError) as refused:
        look()
    assert refused.value.rule is rule and refused.value.where.endswith("feed, line 1")


def test_a_container_that_grows_is_read_from_its_beginning_when_it_is_whole(tmp_path: Path, following: Following, look: Look) -> None:
    write(tmp_path / ".whole", [one("a"), one("b")], FileFormat.AVRO, STRING)
    whole, feed = (tmp_path / ".whole").read_bytes(), tmp_path / "feed.avro"
    for part in (2, 3, len(whole) - 5):
        feed.write_bytes(whole[:part])
        assert look() == [] and following.unfinished == ["feed.avro"]
    feed.write_bytes(whole)
    assert look() == [one("a"), one("b")] and following.unfinished == []
    assert look() == []


def test_gzip_is_undone(tmp_path: Path, look: Look) -> None:
    packed = gzip.compress(b"update (a, time0, +1)\n")
    (tmp_path / "feed.gz").write_bytes(packed[:-9])
    assert look() == []
    (tmp_path / "feed.gz").write_bytes(packed)
    assert look() == [one("a")]


@pytest.mark.parametrize("content", ["update (b, time0, +1)\n", "update (other, time0, +1)\nupdate (c, time0, +1)\n"])
def test_a_file_that_is_replaced_is_read_again(tmp_path: Path, look: Look, content: str) -> None:
    feed = tmp_path / "feed"
    feed.write_text("update (a, time0, +1)\n" * 2)
    assert len(look()) == 2
    (tmp_path / ".new").write_text(content)
    (tmp_path / ".new").replace(feed)
    assert len(look()) == content.count("\n")


def test_hidden_files_and_directories_are_left_out_and_one_that_is_taken_away_is_forgotten(tmp_path: Path, look: Look) -> None:
    (tmp_path / ".feed.partial").write_text("nonsense")
    (tmp_path / "directory").mkdir()
    (tmp_path / "feed").write_text("update (a, time0, +1)\n")
    assert len(look()) == 1
    (tmp_path / "feed").unlink()
    assert look() == []


def test_two_generations_in_a_directory_are_refused(tmp_path: Path, look: Look) -> None:
    for generation in (1, 2):
        write(tmp_path / f"{generation}.avro", [one("a")], FileFormat.AVRO, STRING, generation=generation)
    with pytest.raises(FeedError) as refused:
        look()
    assert refused.value.rule is Rule.GENERATION and "2.avro" in refused.value.where


def test_a_schema_that_was_not_asked_for_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "feed.avro", [one("a")], FileFormat.AVRO, STRING)
    with pytest.raises(FeedError) as refused:
        list(Following(tmp_path, schema("long")).look())
    assert refused.value.rule is Rule.SCHEMA


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="nowhere cannot be read: No such file"):
        list(Following(tmp_path / "nowhere").look())
