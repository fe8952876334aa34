"""Feeds as files: each form comes back, is found out, and says where it is broken."""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from changelog.base.errors import ConfigurationError, InvalidRequestError
from changelog.base.extras import installing
from recovery.feed import CdcReader, FeedError, Message, Progress, Rule, Update, Updates, files
from recovery.feed.avro import schema
from recovery.feed.files import GENERATION, UPDATES_MAX, FileFormat, LocatedMessage, read, read_all, write
from recovery.feed.spelling import to_line
from tests.given.feeds import batches


def reference(name: str, time: int, diff: int = 1) -> Update:
    return Update({"object": name, "blob": f"{name}/1"}, time, diff)


MESSAGES: list[Message] = [
    Updates((reference("a", 0), reference("\u00fc b", 0))), Progress((0,), (1,), ((0, 2),)), Updates((reference("a", 1, -1),)),
    Progress((1,), (), ((1, 1),)),
]  # fmt: skip
FUZZED = 60


def contents(messages: list[Message]) -> list[Update | Progress]:
    return [part for each in messages for part in (each.updates if isinstance(each, Updates) else [each])]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("form", FileFormat)
def test_what_was_written_is_read_back_with_its_place(form: FileFormat, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / ("feed.gz" if zipped else "feed")
    assert write(path, MESSAGES, form) == 4
    found = list(read(path))
    assert contents([each.message for each in found]) == contents(MESSAGES)
    assert [each.number for each in found] == list(range(1, len(found) + 1))
    assert {each.file for each in found} == {str(path)}
    if form in (FileFormat.JSON, FileFormat.TEXT):
        assert [each.position for each in found] == [each.number for each in found]
        assert found[1].where == f"{path}, line 2"
    once = path.read_bytes()
    write(path, MESSAGES, form)
    assert path.read_bytes() == once and list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_where_a_message_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    path.write_text("what was there")
    with pytest.raises(InvalidRequestError, match="does not fit the schema"):
        write(path, [*MESSAGES, Updates((Update("text", 2, 1),))], FileFormat.AVRO)
    assert path.read_text() == "what was there" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("form", FileFormat)
def test_a_file_that_is_cut_off_says_where(form: FileFormat, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    write(whole, MESSAGES, form)
    content, path = whole.read_bytes(), tmp_path / "cut"
    for end in range(len(content) - 2, 0, -11):
        path.write_bytes(content[:end])
        before: list[LocatedMessage] = []
        found: FeedError | None = None
        try:
            before.extend(read(path))
        except FeedError as error:
            found = error
        if found is None:  # it was cut between two messages
            assert form is not FileFormat.AVRO
        else:
            assert found.where.startswith(str(path)) and found.rule in (Rule.WHOLE, Rule.FORM)
        there = contents([each.message for each in before])
        assert there == contents(MESSAGES)[: len(there)]


@pytest.mark.parametrize(("content", "rule", "where", "why"), [
    (b"PAR1....", Rule.FORM, "byte 0", "begins with b'PAR1....'"),
    (b"\x89PNG\r\n", Rule.FORM, "byte 0", "neither with an Avro header nor with a message"),
    (b"hello\n", Rule.FORM, "byte 0", "begins with b'hello"),
    (b"Obj\x01", Rule.WHOLE, "byte 0, message 1", "header"),
    (b'{"array":[]}\n{"array":1}\n', Rule.FORM, "line 2", "array is 1, not a list"),
    (b'{"array":[]}\n{"array":[', Rule.WHOLE, "line 2", "is not JSON"),
    (b'{"array":[]}\n{"other":[]}', Rule.FORM, "line 2", "no kind of message"),
    (b'{"array":[]}\nupdate (a, time0, +1)\n', Rule.FORM, "line 2", "is not JSON"),
    (b'{"array":[]}\n\xff\n', Rule.FORM, "line 2", "not UTF-8"),
    (b"update (a, time0, +1)\nupdate (a, ti", Rule.WHOLE, "line 2", "neither"),
    (b"update (a, time0, +1)\n\nupdate (a, 0, +1)\n", Rule.FORM, "line 3", "neither"),
    (b'{"record":1,"delta":1}\n', Rule.FORM, "line 1", "it is no object with one key"),
    (gzip.compress(b'{"array":[]}\n' * 100, mtime=0)[:-9], Rule.WHOLE, "byte ", "gzip file ends too early"),
    (gzip.compress(b'{"array":[]}\n' * 100, mtime=0)[:20] + b"\0" * 40, Rule.FORM, "byte ", "gzip file is damaged"),
])  # fmt: skip
def test_a_file_that_is_foreign_or_broken_says_where_and_why(content: bytes, rule: Rule, where: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "feed"
    path.write_bytes(content)
    with pytest.raises(FeedError) as raised:
        list(read(path))
    error = raised.value
    assert error.rule is rule and error.where.startswith(f"{path}, {where}") and why in error.why
    assert str(error) == f"{error.where}: {error.why} (rule {rule}: {rule.value})"


def test_an_empty_file_has_no_messages_but_an_empty_container_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "feed.json").touch()
    assert list(read(tmp_path / "feed.json")) == []
    (tmp_path / "feed.avro").touch()
    with pytest.raises(FeedError, match="header"):
        list(read(tmp_path / "feed.avro"))


def test_a_schema_that_does_not_match_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    write(path, MESSAGES, FileFormat.AVRO)
    with pytest.raises(FeedError, match=r"feed, byte 0, message 1: the file's records have the schema .* 'string' was asked for") as raised:
        list(read(path, schema=schema("string")))
    assert raised.value.rule is Rule.SCHEMA
def test_a_message_of_very_many_updates_is_cut(tmp_path: Path) -> None:
    whole = Updates(tuple(Update(number, 0, 1) for number in range(UPDATES_MAX + 1)))
    assert write(tmp_path / "feed", [whole]) == 1
    assert [each.message for each in read(tmp_path / "feed")] == [Updates(whole.updates[:-1]), Updates(whole.updates[-1:])]


def test_files_of_two_generations_are_refused(tmp_path: Path) -> None:
    one, other, silent = tmp_path / "one", tmp_path / "other", tmp_path / "silent"
    write(one, MESSAGES[:2], FileFormat.AVRO, generation=3)
    write(other, MESSAGES[2:], FileFormat.AVRO, generation=4)
    write(silent, MESSAGES[2:], FileFormat.JSON)
    assert len(list(read_all([one, silent, one]))) == 6
    with pytest.raises(FeedError, match=r"other, byte \d+, message 1: the file is of generation 4, and .*one is of generation 3"):
        list(read_all([one, silent, other]))
    assert GENERATION == "tiered.feed.generation"


@pytest.mark.parametrize("name", ["missing", "", "nul\0l"])
def test_a_file_that_cannot_be_opened_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read: "):
        list(read(str(tmp_path / name)))


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequestError, match="file/feed cannot be written: Not a directory"):
        write(tmp_path / "file" / "feed", MESSAGES)


def test_without_fastavro_only_avro_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "avro", MESSAGES, FileFormat.AVRO)
    write(tmp_path / "json", MESSAGES, FileFormat.JSON)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "recovery.feed.avro")
    assert len(list(read(tmp_path / "json"))) == 4
    with pytest.raises(ConfigurationError, match=re.escape(installing("feed"))):
        list(read(tmp_path / "avro"))


def test_standard_input_may_give_its_first_bytes_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    out, into = os.pipe()

    def type_slowly() -> None:
        with os.fdopen(into, "wb", buffering=0) as typed:
            for byte in b"update (record0, time0, +2)\nprogress (time0, 1)\n":
                typed.write(bytes([byte]))

    typing = threading.Thread(target=type_slowly)
    typing.start()
    with os.fdopen(out, "rb") as source:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(source))
        found = list(read("-"))
        typing.join()
    assert [each.message for each in found] == [Updates((Update("record0", 0, 2),)), Progress((0,), (1,), ((0, 1),))]
    assert found[1].where == "standard input, line 2"


class Dripping(io.RawIOBase):
    """A pipe whose writer is so slow that each read finds one byte."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        for byte in self._bytes:
            buffer[0] = byte
            return 1
        return 0


@pytest.mark.parametrize("form", FileFormat)
def test_the_form_is_found_out_where_each_read_gives_one_byte(form: FileFormat, tmp_path: Path) -> None:
    write(tmp_path / "feed", MESSAGES, form)
    data = (tmp_path / "feed").read_bytes()
    found = list(read("pipe", open_file=lambda path: Dripping(data)))
    assert contents([each.message for each in found]) == contents(MESSAGES)


def test_the_bytes_that_were_read_are_told(tmp_path: Path) -> None:
    path = tmp_path / "feed.gz"
    write(path, MESSAGES)
    counts: list[int] = []
    assert len(list(read(path, on_read=counts.append))) == 4
    assert sum(counts) == path.stat().st_size


def test_a_file_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """60 MB of messages, of which the reader holds one at a time."""
    path = tmp_path / "feed"
    with path.open("w") as to:
        for time in range(600):
            to.write(f'{{"array":[{{"data":"{"x" * 100_000}","time":{time},"diff":1}}]}}\n')
            to.write(f"{to_line(Progress((time,), (time + 1,), ((time, 1),)))}\n")
    source = (
        "import resource, sys\n"
        "from recovery.feed import CdcReader\n"
        "from recovery.feed.files import read\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "reader = CdcReader()\n"
        "print(sum(reader.feed(each.message) is not None for each in read(sys.argv[1])))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", source, str(path)], capture_output=True, text=True, check=True)
    count, grown_kib = (int(line) for line in done.stdout.split())
    assert count == 600 and grown_kib < 20_000


def test_a_file_with_a_broken_message_is_not_half_applied(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    path.write_text('{"array":[{"data":"a","time":0,"diff":1},{"data":"b","time":"0","diff":1}]}\n')
    reader = CdcReader()
    with pytest.raises(FeedError, match="line 1: the time of an update is '0'"):
        batches(reader, (each.message for each in read(path)))
    assert reader.held.updates == 0


@pytest.mark.parametrize("form", FileFormat)
def test_bytes_that_were_changed_anywhere_give_messages_or_an_error_of_the_feed(form: FileFormat, tmp_path: Path) -> None:
    random, path = Random(7), tmp_path / "feed"
    write(path, MESSAGES, form, codec="null")
    whole = path.read_bytes()
    refused = 0
    for _ in range(FUZZED):
        content = bytearray(whole)
        for _ in range(random.choice((1, 1, 3))):
            at = random.randrange(len(content))
            content[at : at + random.choice((0, 1, 1, 5))] = random.randbytes(random.choice((0, 1, 1, 3)))
        path.write_bytes(content)
        places: list[str] = []
        try:
            for located in read(path):
                places.append(located.where)
        except FeedError as error:
            refused += 1
            places.append(error.where)
        assert all(each.startswith(str(path)) for each in places)
    assert refused > FUZZED / 5


# --- what must not pass in silence -----------------------------------------------------------------


def test_a_line_that_is_too_long_is_no_line_that_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LINE_BYTES_MAX", 100)
    path = tmp_path / "feed"
    for line in (b'{"array":[' + b" " * 100, b" " * 150):
        path.write_bytes(b'{"array":[]}\n' + line + b"]}\n")
        with pytest.raises(FeedError, match=r"line 2: the line is longer than 100 bytes") as raised:
            list(read(path))
        assert raised.value.rule is Rule.FORM


def test_what_is_written_is_never_too_long_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LINE_BYTES_MAX", 3000)
    monkeypatch.setattr(files, "MESSAGE_CHARACTERS", 1000)
    path = tmp_path / "feed"
    updates = Updates(tuple(Update("x" * 300 + str(n), 0, 1) for n in range(50)))
    write(path, [updates])
    assert contents([each.message for each in read(path)]) == contents([updates])
    before = path.read_bytes()
    for message in (Updates((Update("x" * 3000, 0, 1),)), Progress((0,), (300,), tuple((time, 1) for time in range(300)))):
        for form in (FileFormat.JSON, FileFormat.TEXT):
            with pytest.raises(InvalidRequestError, match="a line of a feed may have 3000 bytes"):
                write(path, [message], form)
    with pytest.raises(InvalidRequestError, match="has 3000 bytes, and a message of a feed may have about 2812 bytes"):
        write(path, [Updates((Update("x" * 2998, 0, 1),))], FileFormat.AVRO, schema=schema("string"))
    assert path.read_bytes() == before


def test_a_pipe_that_has_nothing_right_now_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input that does not block gives None, and that is no end of the file."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.write(writing, b'{"array":[]}\n')
    with os.fdopen(reading, "rb") as source:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(source))
        messages = read("-")
        assert next(messages).number == 1
        with pytest.raises(InvalidRequestError, match="standard input cannot be read after byte 13: it does not block"):
            next(messages)
    os.close(writing)


def test_what_is_on_standard_input_is_read_before_the_next_line_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"array":[]}\n')
    late = threading.Timer(20, os.close, [writing])
    late.start()
    with os.fdopen(reading, "rb") as source:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(source))
        assert next(read("-")).number == 1
        assert late.is_alive()
        late.cancel()
        os.close(writing)


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "feed"

    def slow() -> Iterator[Message]:
        yield MESSAGES[0]
        writer = threading.Thread(target=write, args=(path, MESSAGES[1:2]))
        writer.start()
        writer.join()
        assert len(list(read(path))) == 1
        yield MESSAGES[2]

    assert write(path, slow()) == 2
    assert [each.message for each in read(path)] == [MESSAGES[0], MESSAGES[2]]
    assert list(tmp_path.iterdir()) == [path]


def test_only_a_plain_file_is_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(InvalidRequestError, match="is no plain file"):
            write(path, MESSAGES)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_what_is_not_what_the_function_asks_for_is_named(tmp_path: Path) -> None:
    path: Any = tmp_path / "feed"
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: write(path, MESSAGES, "jsonl"), "'jsonl' is no form of a feed"),  # type: ignore[arg-type]
        (lambda: list(read(path, "jsonl")), "'jsonl' is no form of a feed"),  # type: ignore[arg-type]
        (lambda: write(path, [{"array": []}]), "{'array': []} is no message"),  # type: ignore[list-item]
        (lambda: write(path, MESSAGES, FileFormat.AVRO, generation=-1), "the generation is -1"),
        (lambda: write(path, MESSAGES, FileFormat.AVRO, generation=10**19), "the generation is 10000000000000000000"),
        (lambda: write(path, MESSAGES, FileFormat.AVRO, generation="3"), "the generation is '3'"),  # type: ignore[arg-type]
        (lambda: write(path, MESSAGES, FileFormat.AVRO, schema="string"), "'string' is no schema of a feed"),  # type: ignore[arg-type]
        (lambda: write(None, MESSAGES), "None is no path"),  # type: ignore[arg-type]
        (lambda: list(read(3)), "3 is no path"),  # type: ignore[arg-type]
    ]
    for call, sentence in wrong:
        with pytest.raises(InvalidRequestError, match=re.escape(sentence)):
            call()
    assert list(tmp_path.iterdir()) == []
    write(path, MESSAGES, "text")  # type: ignore[arg-type]
    assert path.read_text().startswith("update (")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_named(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "feed"
    path.write_text("update (a, time0, +1)\n", encoding)
    with pytest.raises(FeedError, match="byte 0: the file begins with a byte order mark: save it as UTF-8 without one"):
        list(read(path))
