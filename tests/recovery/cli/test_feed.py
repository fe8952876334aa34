"""`tiered feed`: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.progress import Progress as Bar

from recovery.cli.feed import check, follow, inputs, view
from recovery.feed import Message, Progress, Update, Updates
from recovery.feed.avro import REFERENCES, schema
from recovery.feed.files import FileFormat, write
from tests.given.command_line import Command

STRING = schema("string")
PUBLISHED = """\
update (record0, time0, +2)
update (record1, time0, +1)
update (record2, time0, +1)
progress (time0, 3)
update (record1, time1, -1)
update (record2, time1, +1)
progress (time1, 2)
update (record0, time2, -1)
update (record2, time2, -1)
progress (time2, 2)
progress (time3, 0)
"""


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    (tmp_path / "feed.txt").write_text(PUBLISHED)
    return Command(tmp_path, store=False)


@pytest.fixture
def parts(tiered: Command) -> Path:
    (made := tiered.directory / "parts").mkdir()
    return made


def records(printed: str) -> dict[str, tuple[int, int]]:
    return {each["record"]: (each["multiplicity"], each["since"]) for each in json.loads(printed)["records"]}


# --- view ------------------------------------------------------------------------------------------


def test_the_published_example_pasted_into_stdin_is_viewed(tiered: Command) -> None:
    assert tiered("feed", "view", "-", stdin=PUBLISHED.encode()) == (
        "multiplicity  since  record\n"
        "1             0      record0\n"
        "1             0      record2\n"
        "2 records at the frontier, time 4\n"
    )  # fmt: skip


def test_a_view_of_an_earlier_time_and_one_as_json(tiered: Command) -> None:
    assert tiered("feed", "view", "feed.txt", "--at", "1").endswith("2 records at time 1\n")
    shown = tiered("feed", "view", "feed.txt", "--at", "1", "--json")
    assert records(shown) == {"record0": (2, 0), "record2": (2, 0)}
    assert json.loads(shown)["frontier"] == [4] and json.loads(shown)["at"] == 1


@pytest.mark.parametrize(("at", "says"), [
    ("4", "--at 4 is not complete: the frontier is 4, so give 3 or an earlier time, or leave it out"),
    ("99999999999999999999", "an integer of 64 bits"),
])  # fmt: skip
def test_a_time_from_the_frontier_on_has_no_view(tiered: Command, at: str, says: str) -> None:
    assert tiered("feed", "view", "feed.txt", "--at", at, code=3) == "" and says in tiered.errors
    assert tiered("feed", "view", "-", "--at", "0", stdin=b"", code=3) == "" and "no time is: the frontier is 0" in tiered.errors


def test_what_is_not_complete_is_left_out_and_this_is_said(tiered: Command) -> None:
    assert tiered("feed", "view", "-", stdin=PUBLISHED.replace("progress (time2, 2)\n", "").encode()).endswith("time 2\n")
    assert tiered.errors == "tiered: 2 updates are not complete yet, and left out: 'tiered feed check' says what is missing\n"
    tiered("feed", "view", "-", stdin=b"update (a, time0, +1)")
    assert tiered.errors.startswith("tiered: 1 update is not complete yet")


def test_several_files_are_one_feed_in_any_order_and_a_directory_stands_for_its_files(tiered: Command, parts: Path) -> None:
    lines = PUBLISHED.splitlines(keepends=True)
    for number in range(3):
        (parts / f"{number}.txt").write_text("".join(lines[number::3] + lines[:4]))
    (parts / ".4.partial").write_text("nonsense")
    (parts / "_claim").write_text("nonsense")
    whole = tiered("feed", "view", "feed.txt")
    assert tiered("feed", "view", "parts") == whole
    assert tiered("feed", "view", "parts/2.txt", "parts/0.txt", "-", stdin=(parts / "1.txt").read_bytes()) == whole


def test_a_uri_names_a_file_or_a_directory_as_in_a_bucket(tiered: Command, tmp_path: Path) -> None:
    """`file://` takes the same way as `gs://`. Names that begin with _ are left out there, too."""
    (tmp_path / "feeds").mkdir()
    (tmp_path / "feeds" / "_claim").write_text("no feed")
    (tmp_path / "feeds" / "below").mkdir()
    (tmp_path / "feeds" / "1.gz").write_bytes(gzip.compress(PUBLISHED.encode()))
    whole = f"file://{tmp_path}/feeds"
    for uri in (whole, f"{whole}/", f"{whole}/1.gz"):
        assert tiered("feed", "view", uri).endswith("2 records at the frontier, time 4\n")
    for uri, says in (
        (f"{whole}/2.gz", "there is no file of a feed"), ("nope://a/b", "the feed nope://a/b cannot be opened"), ("gs://", "gs://bucket"),
    ):  # fmt: skip
        assert tiered("feed", "view", uri, code=3) == "" and says in tiered.errors
    tiered("feed", "convert", "feed.txt", whole, "--to", "json", code=3)
    assert "no file that can be replaced" in tiered.errors


def test_times_may_be_shown_as_dates(tiered: Command) -> None:
    lines = b"update (a, time1795000000000, +1)\nprogress (time0 to end, time1795000000000: 1)"
    printed = tiered("feed", "view", "-", "--dates", stdin=lines)
    assert "2026-11-18T11:06:40.000+00:00  a\n" in printed and printed.endswith("1 record at the end of the feed\n")


def test_a_large_view_is_whole(tiered: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "TABLE_ROWS", 3)
    lines = "".join(f"update (r{number}, time0, +1)\n" for number in range(10)) + "progress (time0, 10)\n"
    shown = tiered("feed", "view", "-", stdin=lines.encode()).splitlines()
    assert len(shown) == 12 and shown[-1].startswith("10 records")
    assert len(records(tiered("feed", "view", "-", "--json", stdin=lines.encode()))) == 10


def test_names_that_steer_a_terminal_are_spelt_out(tiered: Command) -> None:
    assert "\x1b" not in tiered("feed", "view", "-", stdin=b'update ("\\u001b[31m", time0, +1)\nprogress (time0, 1)\n')


def test_the_rule_of_the_published_sketch(tiered: Command) -> None:
    sketch = (
        b"update (a, time0, +1)\nprogress (time0, 1)\nupdate (failed, time1, +1)\n"
        b"progress (time0, 1)\nupdate (b, time1, +1)\nprogress (time1, 1)\n"
    )
    assert tiered("feed", "view", "-", code=6, stdin=sketch) == "" and "(rule count: " in tiered.errors
    assert records(tiered("feed", "view", "-", "--rollback", "--json", stdin=sketch)) == {"a": (1, 0), "b": (1, 1)}
    found = json.loads(tiered("feed", "check", "-", "--rollback", "--json", stdin=sketch))
    assert (found["sound"], found["discarded"], found["gaps"], found["waiting"]) == (True, 1, [], None)
    shown = tiered("feed", "check", "-", "--rollback", stdin=sketch)
    assert "discarded         1\n" in shown and shown.startswith("sound             yes: by the rule of the published sketch, which ")
    assert tiered("feed", "check", "feed.txt", "--rollback", "--bounded", code=3) == "" and "--bounded is of CDC v2" in tiered.errors


# --- check -----------------------------------------------------------------------------------------


def test_a_sound_feed(tiered: Command) -> None:
    assert tiered("feed", "check", "feed.txt", "feed.txt") == (
        "sound             yes: all messages were compared\n"
        "messages          22\n"
        "updates           14\n"
        "delivered         7\n"
        "repeated          7\n"
        "frontier          time 4: all before it is complete\n"
        "held              nothing\n"
        "waiting for       a progress message about time 4\n"
    )


def test_what_a_sound_feed_waits_for(tiered: Command) -> None:
    lines = b"update (a, time0, +1)\nupdate (b, time5, +1)\nprogress (time0, 2)\nprogress (time5, 1)\nprogress (time9 to time20)\n"
    shown = tiered("feed", "check", "-", stdin=lines, code=1)
    assert "missing           messages between others: readers stand still at the frontier\n" in shown
    assert "held              2 updates are held back; " in shown and "no progress about times 1 to 4, times 6 to 8\n" in shown
    assert "waiting for       updates at time 0: 2 are declared, and 1 came\n" in shown
    found = json.loads(tiered("feed", "check", "-", "--json", stdin=lines, code=1))
    assert (found["sound"], found["gaps"], found["waiting"]) == (True, [[1, 5], [6, 9]], {"time": 0, "declared": 2, "received": 1})
    assert found["missing"] is True
    assert "frontier          time 0: nothing is complete\n" in shown
    ended = json.loads(tiered("feed", "check", "-", "--json", stdin=b"progress (time0 to end)"))
    assert (ended["frontier"], ended["waiting"], ended["gaps"], ended["missing"]) == ([], None, [], False)
    assert "frontier          the end of the feed" in tiered("feed", "check", "-", stdin=b"progress (time0 to end)")


def test_many_gaps_are_cut_in_words_and_not_in_json(tiered: Command) -> None:
    lines = "".join(f"progress (time{2 * number}, 0)\n" for number in range(3000)).encode()
    assert " and 2,989 more\n" in tiered("feed", "check", "-", stdin=lines, code=1)
    assert len(json.loads(tiered("feed", "check", "-", "--json", stdin=lines, code=1))["gaps"]) == 2999


CONTRADICTION = "progress (time0, 4)\n"


@pytest.mark.parametrize(("more", "rule"), [
    (CONTRADICTION, "progress"), ("update (record9, time1, +1)\n", "count"), ("update (record0, time0, +3)\n", "diff"),
    ("update (a, time-1, +1)\n", "time"), ("progress (time7 to time5)\n", "interval"), ("nonsense\n", "form"), ("update (a, ti", "whole"),
    (f"update (a, time{2**63}, +1)\n", "value"),
])  # fmt: skip
def test_a_feed_that_is_not_sound_names_the_file_the_message_and_the_rule(tiered: Command, more: str, rule: str) -> None:
    (tiered.directory / "more.txt").write_text(f"progress (time0, 3)\n\n{more}")
    shown = tiered("feed", "check", "feed.txt", "more.txt", code=6)
    assert shown.startswith("sound             no\nwhere             more.txt, line 3\n") and f"\nrule              {rule}: " in shown
    found = json.loads(tiered("feed", "check", "feed.txt", "more.txt", "--json", code=6))
    assert found["sound"] is False and found["messages_before"] == 12
    assert (found["problem"]["where"], found["problem"]["rule"]) == ("more.txt, line 3", rule)


def test_without_memory_of_what_is_complete_a_late_contradiction_is_not_found_and_this_is_said(tiered: Command) -> None:
    (tiered.directory / "late.txt").write_text(CONTRADICTION)
    assert tiered("feed", "check", "feed.txt", "late.txt", "--bounded").startswith(
        "sound             yes: messages about times that were not complete yet were compared\n"
    )
    found = json.loads(tiered("feed", "check", "feed.txt", "feed.txt", "--bounded", "--json"))
    assert (found["repeated"], found["late"]) == (0, 7)
    shown = tiered("feed", "check", "feed.txt", "feed.txt", "--bounded")
    assert "late              7 updates about complete times, which were not compared\n" in shown
    tiered("feed", "check", "feed.txt", "late.txt", code=6)


def test_a_check_that_keeps_very_many_updates_says_so(tiered: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "KEPT_SAID_AT", 5)
    tiered("feed", "check", "feed.txt")
    assert tiered.errors == "tiered: all of 5 updates are kept in memory so far, to compare all messages; --bounded keeps fewer\n"
    tiered("feed", "check", "feed.txt", "--bounded")
    assert tiered.errors == ""


def test_a_view_of_a_feed_that_is_not_sound_prints_nothing(tiered: Command) -> None:
    (tiered.directory / "more.txt").write_text("update (record9, time9, +1)\nprogress (time9, 0)\n")
    assert tiered("feed", "view", "feed.txt", "more.txt", code=6) == ""
    assert tiered.errors == (
        "tiered: more.txt, line 2: progress (time9, 0) declares 0 at time 9, and 1 distinct updates came "
        "(rule count: a time has no more distinct updates than progress declares)\n"
    )


# --- files -----------------------------------------------------------------------------------------


def test_bad_files_are_refused_with_their_name_the_place_and_the_rule(tiered: Command) -> None:
    where = tiered.directory
    messages: list[Message] = [Updates((Update("a", 0, 1),)), Progress((0,), (1,), ((0, 1),))]
    for generation in (1, 2):
        write(where / f"{generation}.avro", messages, FileFormat.AVRO, STRING, generation=generation)
    (where / "cut.avro").write_bytes((where / "1.avro").read_bytes()[:-3])
    (where / "cut.gz").write_bytes(gzip.compress(PUBLISHED.encode())[:-4])
    (where / "foreign").write_bytes(b"\x89PNG\r\n")
    for arguments, says in (
        (["cut.avro"], "cut.avro, byte "), (["cut.gz"], "cut.gz, byte "), (["foreign"], "foreign, byte 0"),
        (["1.avro", "2.avro"], "2.avro, byte "), (["1.avro", "--schema", "long"], "(rule schema: "),
        (["1.avro", "2.avro"], "is of generation 2, and 1.avro is of generation 1 (rule generation: "),
    ):  # fmt: skip
        assert tiered("feed", "view", *arguments, code=6) == ""
        assert says in tiered.errors and tiered.errors.startswith("tiered: ") and tiered.errors.count("\n") == 1


@pytest.mark.parametrize(("arguments", "says"), [
    (["view", "absent"], "absent cannot be read: No such file"), (["view", "empty"], "there is no file of a feed in the directory empty"),
    (["view", "-", "-"], "- stands for stdin, and is given twice"), (["view", "x\udcff"], "cannot be read"),
    (["view", ""], "cannot be read"),
    (["view", "feed.txt", "--schema", "absent.json"], "--schema 'absent.json' is neither"), (["follow", "absent"], "absent cannot be read"),
    (["view", "feed.txt", "--schema", "{"], "--schema is not JSON"), (["view", "feed.txt", "--schema", "{}"], "is no Avro schema"),
    (["view", "feed.txt", "--schema", '{"type":"array","items":"null"}'], "tiered: the schema {'type': 'arr"),
    (["convert", "feed.txt", "out", "--to", "csv"], "--to 'csv' is no form: use avro, json, text"),
    (["convert", "feed.txt", "no/out", "--to", "json"], "cannot be written"),
    *((["convert", "feed.txt", out, "--to", "json"], "is no file that") for out in ("/dev/null", "/dev/stdout", "empty", "", "/")),
    (["convert", "feed.txt", "out", "--to", "avro"], "say with --schema which schema the records have"),
])  # fmt: skip
def test_wrong_requests_end_in_a_sentence(tiered: Command, arguments: list[str], says: str) -> None:
    (tiered.directory / "empty").mkdir()
    assert tiered("feed", *arguments, code=3) == ""
    assert says in tiered.errors and tiered.errors.count("\n") == 1
    assert sorted(each.name for each in tiered.directory.iterdir()) == ["empty", "feed.txt"]


# --- convert ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["avro", "json", "text"])
def test_a_file_becomes_another_form_and_the_same_again(tiered: Command, form: str) -> None:
    asked = ["--schema", "string"]
    assert tiered("feed", "convert", "feed.txt", "other", "--to", form, *asked) == "11 messages written to other\n"
    assert tiered("feed", "convert", "other", "-", "--to", "text") == PUBLISHED
    assert tiered("feed", "view", "other") == tiered("feed", "view", "feed.txt")


def test_a_generation_is_kept(tiered: Command) -> None:
    where = tiered.directory
    references = [Updates((Update({"object": "o", "blob": "o/1"}, 0, 1),))]
    write(where / "one.avro", references, FileFormat.AVRO, REFERENCES, generation=3)
    found = json.loads(tiered("feed", "convert", "one.avro", "two.avro.gz", "--to", "avro", "--json"))
    assert found == {"messages": 1, "to": "two.avro.gz", "form": "avro"}
    write(where / "four.avro", references, FileFormat.AVRO, REFERENCES, generation=4)
    assert tiered("feed", "view", "two.avro.gz", "four.avro", code=6) == "" and "generation 3" in tiered.errors


def test_a_conversion_that_fails_leaves_the_file_as_it_was(tiered: Command) -> None:
    (tiered.directory / "out").write_text("before")
    assert tiered("feed", "convert", "-", "out", "--to", "json", stdin=f"{PUBLISHED}nonsense\n".encode(), code=6) == ""
    assert "standard input, line 12" in tiered.errors
    assert (tiered.directory / "out").read_text() == "before" and len(list(tiered.directory.iterdir())) == 2
    assert tiered("feed", "convert", "feed.txt", "feed.txt", "--to", "json") == "11 messages written to feed.txt\n"
    (tiered.directory / "link").symlink_to("out")
    tiered("feed", "convert", "feed.txt", "link", "--to", "text")
    assert (tiered.directory / "link").is_symlink() and (tiered.directory / "out").read_text() == PUBLISHED
    tiered("feed", "convert", "-", "nothing", "--to", "json", stdin=b"")
    assert (tiered.directory / "nothing").read_bytes() == b""


# --- follow ----------------------------------------------------------------------------------------


def test_what_follow_prints_is_a_feed_in_order_and_once(tiered: Command, parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = PUBLISHED.splitlines(keepends=True)
    (parts / "1").write_text("".join(reversed(lines[3:])))
    (parts / "2").write_text("".join(lines[:6] * 2))
    printed = tiered("feed", "follow", "parts", "--until-idle", "0")
    assert [line for line in printed.splitlines(keepends=True) if line.startswith("update")] == [*lines[:3], *lines[4:6], *lines[7:9]]
    assert tiered("feed", "view", "-", stdin=printed.encode()) == tiered("feed", "view", "feed.txt")
    monkeypatch.setattr(follow, "MESSAGE_UPDATES", 2)
    as_json = tiered("feed", "follow", "parts", "--for", "0", "--json")
    assert max(len(json.loads(line).get("array", ())) for line in as_json.splitlines()) == 2
    assert all(json.loads(line) for line in as_json.splitlines())
    assert tiered("feed", "view", "-", stdin=as_json.encode()) == tiered("feed", "view", "feed.txt")


def test_follow_goes_on_from_a_time(tiered: Command, parts: Path) -> None:
    (parts / "1").write_text("".join(PUBLISHED.splitlines(keepends=True)[:7]))
    before = tiered("feed", "follow", "parts", "--until-idle", "0")
    (parts / "2").write_text("".join(PUBLISHED.splitlines(keepends=True)[7:]))
    after = tiered("feed", "follow", "parts", "--until-idle", "0", "--from", "2")
    assert "time0" not in after and "time1" not in after and before + after == PUBLISHED
    assert tiered("feed", "follow", "parts", "--until-idle", "0", "--from", "4") == ""


def test_follow_prints_what_comes_while_it_looks(tiered: Command, parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, slept = PUBLISHED.splitlines(keepends=True), 0.0
    waiting = iter(lines)

    class StoppedRuntime:
        def monotonic(self) -> float:
            return slept

        async def sleep(self, seconds: float) -> None:
            nonlocal slept
            slept += seconds
            with (parts / "feed").open("a") as file:
                file.write(next(waiting, ""))

    monkeypatch.setattr(follow, "SystemRuntime", StoppedRuntime)
    monkeypatch.setattr(follow, "BREATHE_EVERY", 2)
    assert tiered("feed", "follow", "parts", "--until-idle", "5") == PUBLISHED
    assert len(lines) * follow.LOOK_EVERY_S < slept < 10 and tiered.errors == ""


def test_follow_ends_where_the_feed_ends_and_spells_out_what_steers_a_terminal(tiered: Command, parts: Path) -> None:
    (parts / "1").write_text('update ("\u202e", time0, +1)\nprogress (time0 to end, time0: 1)\n')
    printed = tiered("feed", "follow", "parts")
    assert printed == 'update ("\\u202e", time0, +1)\nprogress (time0 to end, time0: 1)\n'
    assert tiered("feed", "view", "-", "--json", stdin=printed.encode()) == tiered("feed", "view", "parts", "--json")


def test_follow_says_what_it_did_not_print(tiered: Command, parts: Path) -> None:
    (parts / "1").write_text("update (a, time0, +1)\nprogress (ti")
    assert tiered("feed", "follow", "parts", "--for", "0") == ""
    assert tiered.errors == (
        "tiered: 1 update is not complete yet, and not printed: 'tiered feed check' says what is missing\n"
        "tiered: 1 ends in the middle of a message, which was not read\n"
    )


def test_follow_ends_at_what_breaks_a_rule_and_what_it_printed_stays_true(tiered: Command, parts: Path) -> None:
    (parts / "1").write_text(PUBLISHED)
    (parts / "2").write_text("progress (time9, 1)\nprogress (time9, 2)\n")
    assert tiered("feed", "follow", "parts", code=6) == PUBLISHED
    assert "parts/2, line 2: " in tiered.errors and "(rule progress: " in tiered.errors


# --- progress --------------------------------------------------------------------------------------


def test_progress_is_shown_on_a_terminal_only_and_of_long_inputs(tiered: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[float] = []
    monkeypatch.setattr(Bar, "update", lambda self, task, advance=0, **_: told.append(advance))
    path = str(tmp_path / "feed.txt")
    for terminal, long_bytes, files, shown in (
        (True, 100, [path], True), (False, 100, [path], False), (True, 10_000, [path], False), (True, 0, [path, "-"], False),
        (True, 0, [str(tmp_path / "absent")], False),
    ):  # fmt: skip
        told.clear()
        monkeypatch.setattr(inputs, "LONG_BYTES", long_bytes)
        terminal_or_not: Any = SimpleNamespace(isatty=lambda terminal=terminal: terminal, write=lambda text: None, flush=lambda: None)
        monkeypatch.setattr("sys.stderr", terminal_or_not)
        with inputs._showing(files) as on_read:
            assert (on_read is not None) is shown
            if on_read is not None:
                on_read(os.stat(path).st_size)
        assert told == ([len(PUBLISHED)] if shown else [])
        monkeypatch.undo()
        monkeypatch.setattr(Bar, "update", lambda self, task, advance=0, **_: told.append(advance))


def test_the_folders_of_generations_are_feeds_of_their_own(tiered: Command, tmp_path: Path) -> None:
    """A view of two of them would have each record twice."""
    for generation in (1795000000000, 1795000000001):
        (folder := tmp_path / "feed" / f"generation-{generation:016}").mkdir(parents=True)
        (folder / "0000000000000000000.txt").write_text(PUBLISHED)
    both = sorted(str(each) for each in (tmp_path / "feed").iterdir())
    for command in ("view", "check"):
        assert tiered("feed", command, *both, code=3) == "" and "each is a feed of its own: give one" in tiered.errors
        tiered("feed", command, "feed", code=3)
        assert "give the folder of a generation, such as feed/generation-0001795000000001" in tiered.errors
    tiered("feed", "follow", "feed", "--for", "0", code=3)
    assert "give the folder of a generation, such as feed/generation-0001795000000001" in tiered.errors
    assert tiered("feed", "view", both[1]) == tiered("feed", "view", "feed.txt")
