"""`tiered feed`: a change feed in files, read by the rules of CDC v2.

    view       which records are there, at the frontier or at an earlier time
    check      whether the feed is sound, and what it still waits for
    convert    one file into another form
    follow     a directory: prints updates as progress makes them certain
    receive    takes the files of a feed by HTTP PUT (`recovery.cli.feed_receive`)

    run        publishes the references of a store (`recovery.cli.feed_run`)
    status     says how that goes (`recovery.cli.feed_status`); these two alone need a store

Several files are one feed, in any order. Nothing is written but what `convert` is told to and `receive` is sent. Exit
codes of all but `status`:

    0    done; of `check`: the feed is sound
    3    the request is wrong, or a file cannot be read
    6    a file is damaged or foreign, or the feed breaks a rule: where and which is said

*Failure*: `view` prints nothing, and `convert` leaves the file as it was, unless it writes to stdout. What `follow` has
printed stays true.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Annotated, Any, cast

import anyio
import typer

from changelog.base.errors import ConfigurationError, InvalidRequestError
from changelog.base.runtime import SystemRuntime
from recovery.cli.feed_receive import receive
from recovery.cli.feed_run import run
from recovery.cli.feed_status import feed_status
from recovery.cli.output import PrintedTable, dump, iso_of_ms, show_fields, write
from recovery.cli.shared import choice, guard, say, shared, stay
from recovery.display import escape_controls

if TYPE_CHECKING:
    import recovery.audit.files.directory as audit
    from recovery.feed import CdcReader, FeedBatch, RollbackReader
    from recovery.feed.avro import Schema
    from recovery.feed.errors import FeedError
    from recovery.feed.files import FileFormat, Located
    from recovery.feed.messages import Message
    from recovery.feed.view import FeedView

UNSOUND = 6
MISSING = 1
"""Of `check`: what is there is sound, and something between it is missing, so readers stand still."""
STDIN = "-"
LONG_BYTES = 16 * 2**20
"""Of an input that is longer, progress is shown on a terminal."""
TABLE_ROWS = 1000
LOOK_EVERY_S = 0.2
BREATHE_EVERY = 1000
"""After so many messages, `follow` looks whether it was interrupted."""
MESSAGE_UPDATES = 1000
"""`follow` prints at most so many updates as one message of JSON."""
OPEN_FILES = ("/dev/fd/", "/dev/std", "/proc/")
GAPS_SHOWN = 10
KEPT_SAID_AT = 2_000_000
"""`check` says that it keeps so many updates in memory, more than a gigabyte."""
COVERS_MIN = 1000
"""`check` merges the intervals of progress messages when there are so many more."""
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "string")

feed_app = typer.Typer(help="A change feed: what its files say, whether they are sound, and how the writer does.", no_args_is_help=True)

DirectoryFiles = Annotated[list[str], typer.Argument(
    metavar="FILE...", help="Files of one feed, in any order, also gs://…; a directory stands for its files; - is stdin."
)]  # fmt: skip
At = Annotated[int | None, typer.Option(metavar="TIME", min=0, help="At this time, which must be complete; by default at the last one.")]
FormOption = Annotated[str | None, typer.Option("--form", metavar="FORM", help="Needed for bare and framed; others are recognised.")]
SchemaOption = Annotated[str | None, typer.Option("--schema", metavar="SCHEMA", help=(
    "The Avro schema of the records: string or another primitive type, JSON, or a file with JSON."
))]  # fmt: skip
Dates = Annotated[bool, typer.Option("--dates", help="The feed's times are milliseconds since 1970: show them as dates.")]
Rollback = Annotated[bool, typer.Option("--rollback", help=(
    "By the rule of the published sketch (docs/feed.md): a progress that is repeated discards the updates since then. "
    "Only for channels that keep the order."
))]  # fmt: skip
Bounded = Annotated[bool, typer.Option("--bounded", help=(
    "Forget what is complete. It needs less memory, and does not find what contradicts a complete time afterwards."
))]  # fmt: skip
In = Annotated[str, typer.Argument(metavar="IN", help="A file; - is stdin.")]
Out = Annotated[str, typer.Argument(metavar="OUT", help="A file, which is replaced as a whole; - is stdout.")]
To = Annotated[str, typer.Option("--to", metavar="FORM", help="avro, json, text, delta, bare or framed.")]
SchemaId = Annotated[int, typer.Option("--schema-id", min=0, max=2**31 - 1, help="With framed: the id of the schema in the registry.")]
Directory = Annotated[str, typer.Argument(metavar="DIR", help="A directory into which a writer puts or appends files.")]
From = Annotated[int, typer.Option(
    "--from", min=0, metavar="TIME", help="Print only what is at this time or later: go on after an earlier follow."
)]  # fmt: skip
Idle = Annotated[float | None, typer.Option("--until-idle", min=0, max=86_400, metavar="SECONDS", help="End after so long without news.")]
For = Annotated[float | None, typer.Option("--for", min=0, max=86_400 * 365, metavar="SECONDS", help="End after so long, even with news.")]


feed_app.command()(run)
feed_app.command()(receive)
feed_app.command("status")(feed_status)


@feed_app.callback()
@shared
def choose_feed() -> None:
    """A change feed: what its files say, whether they are sound, and how the writer of a store does."""


# --- view ------------------------------------------------------------------------------------------


@feed_app.command()
@shared
def view(
    files: DirectoryFiles,
    at: At = None,
    dates: Dates = False,
    form: FormOption = None,
    schema: SchemaOption = None,
    rollback: Rollback = False,
) -> None:
    """Shows which records are there, how often, and since when. It shows nothing of a time that is not complete."""

    def command() -> int:
        from recovery.feed.view import FeedView

        shown, reader = FeedView(at), _reader(rollback)
        for located in _messages(files, form, schema):
            if (batch := _fed(reader, located)) is not None:
                shown.add(batch)
        if not shown.complete:
            raise InvalidRequestError(_not_complete(at, shown.frontier))
        _show_view(shown, at, reader, (lambda time: iso_of_ms(time) or str(time)) if dates else str)
        return 0

    _finish(command)


def _not_complete(at: int | None, frontier: tuple[int, ...]) -> str:
    if frontier == (0,):
        return f"--at {at} is not complete, and no time is: the frontier is 0; 'tiered feed check' says what it waits for"
    return f"--at {at} is not complete: the frontier is {frontier[0]}, so give {frontier[0] - 1} or an earlier time, or leave it out"


def _show_view(shown: FeedView, at: int | None, reader: CdcReader | RollbackReader, moment: Callable[[int], str]) -> None:
    held = reader.held
    if choice.json:
        value = {"frontier": shown.frontier, "at": at, "held": {"updates": held.updates, "times": held.times}}
        write(f'{dump(value)[:-1]}, "records": [')
        before = ""
        for row in shown:
            write(before + dump({"record": row.record, "multiplicity": row.multiplicity, "since": row.since}))
            before = ","
        write("]}")
        return
    table = PrintedTable(("multiplicity", "since", "record"))
    rows: list[tuple[str, ...]] = []
    for row in shown:
        rows.append((str(row.multiplicity), moment(row.since), _record(row.record)))
        if len(rows) == TABLE_ROWS:
            table.add(rows)
            rows = []
    table.add(rows)
    what = f"{len(shown):,} record{'' if len(shown) == 1 else 's'}"
    frontier = f"the frontier, time {moment(shown.frontier[0])}" if shown.frontier else "the end of the feed"
    write(f"{what} at {frontier if at is None else f'time {moment(at)}'}")
    if held.updates and at is None:
        say(f"{_updates(held.updates)} not complete yet, and left out: 'tiered feed check' says what is missing")


def _record(data: Any) -> str:
    from recovery.feed.spelling import record_to_text

    return record_to_text(data)


def _updates(number: int) -> str:
    return "1 update is" if number == 1 else f"{number:,} updates are"


def _time(frontier: tuple[int, ...]) -> str:
    return f"time {frontier[0]}" if frontier else "the end of the feed"


# --- check -----------------------------------------------------------------------------------------


@feed_app.command()
@shared
def check(
    files: DirectoryFiles, form: FormOption = None, schema: SchemaOption = None, rollback: Rollback = False, bounded: Bounded = False
) -> None:
    """Says whether the feed is sound. If not: in which file, at which message, and which rule it breaks."""

    def command() -> int:
        from recovery.feed.errors import FeedError

        if rollback and bounded:
            raise InvalidRequestError("--bounded is of CDC v2: with --rollback, what is complete is always forgotten")
        reader, looked = _reader(rollback, remember=not bounded), _Looked()
        try:
            for located in _messages(files, form, schema):
                before = looked.updates
                looked.add(located, _fed(reader, located))
                if before < KEPT_SAID_AT <= looked.updates and not (bounded or rollback):
                    say(f"all of {looked.updates:,} updates are kept in memory so far, to compare all messages; --bounded keeps fewer")
        except FeedError as error:
            _show_problem(error, looked)
            return UNSOUND
        return MISSING if _show_sound(reader, looked, bounded) else 0

    _finish(command)


class _Looked:
    """What was read. `gaps`: the intervals without progress, where later times have some."""

    def __init__(self) -> None:
        self.messages = self.updates = self.delivered = 0
        self._covers: list[tuple[int, int]] = []
        self._merge_at = COVERS_MIN

    def add(self, located: Located, batch: FeedBatch | None) -> None:
        from recovery.feed.batch import END
        from recovery.feed.messages import Updates

        message = located.message
        self.messages += 1
        self.delivered += len(batch.updates) if batch else 0
        if isinstance(message, Updates):
            self.updates += len(message.updates)
            return
        lower, upper = (bound[0] if bound else END for bound in (message.lower, message.upper))
        if lower < upper:
            self._covers.append((lower, upper))
        if len(self._covers) > self._merge_at:
            self._merge()
            self._merge_at = COVERS_MIN + 2 * len(self._covers)

    def gaps(self) -> list[tuple[int, int]]:
        self._merge()
        ends = [0, *(upper for _, upper in self._covers)]
        return [(end, lower) for end, (lower, _) in zip(ends, self._covers, strict=False) if end < lower]

    def _merge(self) -> None:
        merged: list[tuple[int, int]] = []
        for lower, upper in sorted(self._covers):
            if merged and lower <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], upper))
            else:
                merged.append((lower, upper))
        self._covers = merged


def _show_problem(error: FeedError, looked: _Looked) -> None:
    problem = {"where": error.where, "rule": str(error.rule), "why": error.why}
    if choice.json:
        write(dump({"sound": False, "problem": problem, "messages_before": looked.messages}))
        return
    show_fields({"sound": "no", **problem, "rule": f"{error.rule}: {error.rule.value}"}, as_json=False)
    show_fields({"messages before": looked.messages}, as_json=False)


def _show_sound(reader: CdcReader | RollbackReader, looked: _Looked, bounded: bool) -> bool:
    """Shows what was found. Returns whether messages are missing: later ones are there."""
    from recovery.feed.reader import CdcReader

    waiting, gaps, held = None, [], reader.held
    if isinstance(reader, CdcReader):
        waiting, gaps = reader.waiting, looked.gaps()
        compared = "messages about times that were not complete yet were compared" if bounded else "all messages were compared"
        late = reader.late if bounded else 0
        left_out = {"repeated": reader.ignored - late} | ({"late": late} if bounded else {})
    else:
        compared, left_out = "by the rule of the published sketch, which trusts the order", {"discarded": reader.discarded}
    is_missing = bool(gaps) or (waiting is not None and waiting.declared is not None)
    value: dict[str, Any] = {
        "sound": True, "missing": is_missing, "compared": compared, "messages": looked.messages, "updates": looked.updates,
        "delivered": looked.delivered, **left_out, "frontier": reader.frontier,
        "held": {"updates": held.updates, "times": held.times}, "gaps": gaps,
        "waiting": None if waiting is None else asdict(waiting),
    }  # fmt: skip
    if choice.json:
        write(dump(value))
        return is_missing
    frontier = "time 0: nothing is complete" if reader.frontier == (0,) else f"{_time(reader.frontier)}: all before it is complete"
    if "late" in value:
        value["late"] = f"{value['late']:,} updates about complete times, which were not compared"
    value |= {
        "sound": f"yes: {compared}", "compared": None,
        "missing": "messages between others: readers stand still at the frontier" if is_missing else None,
        "frontier": frontier, "held": _held_in_words(held.updates, held.times),
        "no progress about": ", ".join(_gap(*gap) for gap in gaps[:GAPS_SHOWN]) + _more(len(gaps) - GAPS_SHOWN) or None, "gaps": None,
        "waiting for": None if waiting is None else _waiting_in_words(*asdict(waiting).values()), "waiting": None,
    }  # fmt: skip
    show_fields({name: each for name, each in value.items() if each is not None}, as_json=False)
    return is_missing


def _more(number: int) -> str:
    return f" and {number:,} more" if number > 0 else ""


def _gap(begin: int, end: int) -> str:
    return f"time {begin}" if end == begin + 1 else f"times {begin} to {end - 1}"


def _held_in_words(updates: int, times: int) -> str:
    if not updates and not times:
        return "nothing"
    return f"{_updates(updates)} held back; {times:,} time{' is' if times == 1 else 's are'} not complete"


def _waiting_in_words(time: int, declared: int | None, received: int) -> str:
    if declared is None:
        return f"a progress message about time {time}" + (f"; {received} of its updates came" if received else "")
    return f"updates at time {time}: {declared} are declared, and {received} came"


# --- convert ---------------------------------------------------------------------------------------


@feed_app.command()
@shared
def convert(
    source: In, target: Out, to: To, form: FormOption = None, schema: SchemaOption = None, schema_id: SchemaId = 0
) -> None:
    """Writes the messages of a file in another form, one for one. It does not check what they say together."""

    def command() -> int:
        from recovery.feed.files import FileFormat

        form_to = _form("--to", to)
        assert form_to is not None
        if schema_id and form_to is not FileFormat.FRAMED:
            raise InvalidRequestError(f"--schema-id is of framed: leave it out, or write --to framed instead of {to}")
        count = _write(source, _target(target), form_to, form, schema, schema_id)
        if target != STDIN:
            written = {"messages": count, "to": target, "form": form_to.value}
            write(dump(written) if choice.json else f"{count:,} messages written to {target}")
        return 0

    _finish(command)


def _target(name: str) -> str:
    """Returns the file to replace, behind symbolic links. Refuses a device or a pipe, which must not be replaced."""
    if name == STDIN:
        if sys.stdout is None:
            raise InvalidRequestError("stdout is closed; name a file")
        return name
    target = os.path.realpath(name)
    is_other = os.path.exists(target) and not os.path.isfile(target)
    if not name or "://" in name or is_other or os.path.abspath(name).startswith(OPEN_FILES):
        raise InvalidRequestError(f"{name!r} is no file that can be replaced: name another, or - for stdout")
    return target


def _write(source: str, target: str, to: FileFormat, form: str | None, schema: str | None, schema_id: int) -> int:
    from recovery.feed import files

    located = _messages([source], form, schema)
    first = next(located, None)
    generation = None if first is None else first.generation

    def messages() -> Iterator[Message]:
        if first is not None:
            yield first.message
        yield from (each.message for each in located)

    try:
        return files.write(target, messages(), to, _schema(schema), schema_id, generation=generation)
    except InvalidRequestError as error:
        if schema is None and "does not fit the schema" in str(error):
            raise InvalidRequestError(f"{error}; say with --schema which schema the records have") from None
        raise


# --- follow ----------------------------------------------------------------------------------------


@feed_app.command()
@shared
def follow(into: Directory, begin: From = 0, until_idle: Idle = None, for_s: For = None, schema: SchemaOption = None) -> None:
    """Prints updates as progress makes them certain, until Ctrl-C or the end of the feed. The output is a feed, too."""

    async def follow_it() -> int:
        from recovery.feed.follow import Following
        from recovery.feed.reader import CdcReader

        if instead := _give_a_generation(into):
            raise InvalidRequestError(f"the files of a feed are not in the directory {into} itself{instead}")
        runtime, reader, following = SystemRuntime(), CdcReader(), Following(into, _schema(schema))
        stay()
        began_s = news_s = runtime.monotonic()
        printed, number = begin, 0
        while True:
            for located in following.look():
                number += 1
                news_s = runtime.monotonic()
                printed = _print_batch(_fed(reader, located), printed)
                if number % BREATHE_EVERY == 0:
                    await runtime.sleep(0)
            if sys.stdout is not None:
                sys.stdout.flush()
            now_s = runtime.monotonic()
            idle = until_idle is not None and now_s - news_s >= until_idle
            over = for_s is not None and now_s - began_s >= for_s
            if idle or over or not reader.frontier:
                _say_rest(reader, following.unfinished)
                return 0
            await runtime.sleep(LOOK_EVERY_S)

    _finish(lambda: anyio.run(follow_it))


def _print_batch(batch: FeedBatch | None, printed: int) -> int:
    """Prints what a batch has from the time `printed` on, as messages. Returns where the next one begins."""
    from recovery.feed.batch import END
    from recovery.feed.messages import Progress, Update, Updates
    from recovery.feed.spelling import to_json, to_text

    if batch is None:
        return printed
    frontier = batch.frontier[0] if batch.frontier else END
    if frontier <= printed:
        return printed
    updates = [Update(*each) for each in sorted(batch.updates, key=lambda each: each[1]) if each[1] >= printed]
    counts: dict[int, int] = {}
    for each in updates:
        counts[each.time] = counts.get(each.time, 0) + 1
    progress = Progress((printed,), batch.frontier, tuple(sorted(counts.items())))
    cut = range(0, len(updates), MESSAGE_UPDATES)
    messages: list[Message] = [*(Updates(tuple(updates[begin : begin + MESSAGE_UPDATES])) for begin in cut), progress]
    for message in messages:
        for line in [dump(to_json(message))] if choice.json else to_text(message):
            write(line if choice.json else escape_controls(line))
    return frontier


def _say_rest(reader: CdcReader, unfinished: Iterable[str]) -> None:
    if held := reader.held.updates:
        say(f"{_updates(held)} not complete yet, and not printed: 'tiered feed check' says what is missing")
    for name in unfinished:
        say(f"{name} ends in the middle of a message, which was not read")


# --- all -------------------------------------------------------------------------------------------


def _finish(command: Callable[[], int]) -> None:
    def call() -> int:
        from recovery.feed.errors import FeedError

        try:
            return command()
        except FeedError as error:
            say(str(error))
            return UNSOUND

    raise typer.Exit(guard(call))


def _reader(rollback: bool, *, remember: bool = False) -> CdcReader | RollbackReader:
    from recovery.feed import CdcReader, RollbackReader

    return RollbackReader() if rollback else CdcReader(remember=remember)


def _fed(reader: CdcReader | RollbackReader, located: Located) -> FeedBatch | None:
    from recovery.feed.errors import FeedError

    try:
        return reader.feed(located.message)
    except FeedError as error:
        raise error.at(located.where) from None


def _messages(files: list[str], form: str | None, schema: str | None) -> Iterator[Located]:
    from recovery.feed.files import read_all

    paths = _paths(files)
    with _showing(paths) as on_read:
        yield from read_all(paths, form=_form("--form", form), schema=_schema(schema), on_read=on_read, open_file=_open_file)


def _paths(files: list[str]) -> list[str]:
    """Returns the files that were named, with each directory's files in its place."""
    paths: list[str] = []
    for name in files:
        if name == STDIN and (STDIN in paths or sys.stdin is None):
            raise InvalidRequestError("stdin is closed; name a file" if sys.stdin is None else "- stands for stdin, and is given twice")
        if (inside := _of_uri(name) if "://" in name else _of_directory(name)) == []:
            raise InvalidRequestError(f"there is no file of a feed in the directory {name}{_give_a_generation(name)}")
        paths += [name] if inside is None else inside
    _check_generations(paths)
    return paths


def _check_generations(paths: list[str]) -> None:
    """Refuses files from the folders of two generations: each is a feed of its own, from time 0."""
    from recovery.feed.sinks.sink import generation_of

    folders = {path.rpartition("/")[0].rpartition("/")[2] for path in paths}
    if len(found := sorted(folder for folder in folders if generation_of(folder) is not None)) > 1:
        raise InvalidRequestError(f"the files are of the generations {found[0]} and {found[-1]}, and each is a feed of its own: give one")


def _give_a_generation(name: str) -> str:
    """Returns what to give instead of a directory that has the folders of generations. Empty: it has none."""
    from recovery.feed.sinks.sink import generation_of

    if "://" in name or not os.path.isdir(name):
        return ""
    found = [each.path for each in os.scandir(name) if generation_of(each.name) is not None and each.is_dir()]
    return f": give the folder of a generation, such as {max(found)}" if found else ""


def _of_directory(name: str) -> list[str] | None:
    """Returns the files of a directory, or None if it is none."""
    from recovery.feed.files import is_left_out

    if not os.path.isdir(name):
        return None
    return sorted(each.path for each in os.scandir(name) if each.is_file() and not is_left_out(each.name))


def _of_uri(uri: str) -> list[str] | None:
    """Returns the files of a directory such as gs://bucket/feed, or None if the URI is one of a file."""
    from recovery.feed.files import is_left_out

    place = _place(uri)
    with place.explained("be read"):
        if place.filesystem.get_file_info(place.path).is_file:
            return None
    return [f"{uri.rstrip('/')}/{each.name}" for each in place.list() if each.is_file and not is_left_out(each.name)]


def _open_file(path: str | Path) -> io.RawIOBase:
    if "://" not in str(path):
        return io.FileIO(path)
    place = _place(str(path))
    with place.explained("be read"):
        return cast(io.RawIOBase, place.filesystem.open_input_stream(place.path, compression=None))


def _place(uri: str) -> audit.DirectoryFiles:
    try:
        from recovery.audit.files.directory import DirectoryFiles
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"to read {uri}, {error.name} is needed: pip install '.[audit]' in the checkout") from None
    return DirectoryFiles.at(uri, SystemRuntime(), "the feed")


def _form(option: str, text: str | None) -> FileFormat | None:
    from recovery.feed.files import FileFormat

    try:
        return None if text is None else FileFormat(text)
    except ValueError:
        raise InvalidRequestError(f"{option} {text!r} is no form: use {', '.join(FileFormat)}") from None


def _schema(text: str | None) -> Schema | None:
    if text is None:
        return None
    from recovery.feed.avro import schema

    if text in PRIMITIVES:
        return schema(text)
    if not text.lstrip().startswith(("{", "[", '"')):
        try:
            text = Path(text).read_text("utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise InvalidRequestError(f"--schema {text!r} is neither a primitive type, nor JSON, nor a file with JSON: {why}") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"--schema is not JSON: {error}") from None
    return schema(data)


@contextmanager
def _showing(paths: list[str]) -> Iterator[Callable[[int], None] | None]:
    """Shows on a terminal how much of a long input is read. Yields what is told of the bytes."""
    total = _bytes_of(paths) if sys.stderr is not None and sys.stderr.isatty() else None
    if total is None or total < LONG_BYTES:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda count: bar.update(task, advance=count)


def _bytes_of(paths: list[str]) -> int | None:
    """Returns the size of all files together, or None if something is no plain file."""
    total = 0
    for path in paths:
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            return None
        if path == STDIN or not S_ISREG(found.st_mode):
            return None
        total += found.st_size
    return total
