"""What the commands print: JSON for programs, tables for people. No decisions are made here."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from anyio import to_thread, wait_writable

from changelog.base.runtime import SystemRuntime
from changelog.change import Entry, Unreadable
from changelog.lease import Standing, standing
from recovery.cli.shared import AbsentError, say
from recovery.entries import stuck_sentence
from recovery.visible import visible
from tiered.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, TieredError, UnavailableError
from tiered.metadata import CONTENT_TYPE_DEFAULT, encode_metadata
from tiered.settings import Settings
from tiered.stored import PIECE_BYTES, ObjectHead, PutResult, StoredObject

if TYPE_CHECKING:
    from recovery.loop import Report
    from tiered.protocol.backends import Row
    from tiered.provision.findings import Finding

TABLE_ROWS = 100
"""So many are looked at for the widths of the columns, before they are printed."""

Listed = tuple[Entry | Unreadable, Standing]


def absent(object_id: str) -> AbsentError:
    return AbsentError(f"there is no object {object_id}, or it has expired")


def write(text: str) -> None:
    """A line on stdout. What could not be written is no success, and a closed stdout is like a full disk."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed")
    sys.stdout.write(f"{text}\n")


def dump(value: Any) -> str:
    """JSON as people read it, or spelt out where stdout cannot show it."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode("utf-8" if sys.stdout is None else sys.stdout.encoding)
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def show_put(result: PutResult, object_id: str, as_json: bool) -> None:
    value = {"object": object_id, "revision": result.revision, "tier": result.tier.value, "size": result.size}
    _show(value, f"{object_id}  {result.size} bytes  {result.tier.value} tier  revision {result.revision}", as_json)


def show_deleted(object_id: str, as_json: bool) -> None:
    _show({"object": object_id, "deleted": True}, f"{object_id}  deleted", as_json)


def show_head(head: ObjectHead, as_json: bool) -> None:
    value = {
        "object": str(head.object_id), "size": head.size, "tier": head.tier.value, "revision": head.revision,
        "created": _time(head.metadata.time_created), "expires": _time(head.metadata.time_expires),
        "metadata": json.loads(encode_metadata(head.metadata)),
    }
    _show_fields(value, as_json)


def show_line(text: str, as_json: bool) -> None:
    write(dump(text) if as_json else text)


def say_cut(limit: int) -> None:
    say(f"there are more than --limit {limit}")


async def show_survey(found: AsyncIterator[Listed], limit: int | None, as_json: bool) -> bool:
    """Prints each as it comes. False: there was nothing, and nothing was said of it."""
    def cells(listed: Listed) -> tuple[str, ...]:
        return listed[0].key, listed[1].value, _object(listed[0])

    return await _show_listed(found, ("key", "standing", "object"), cells, limit, as_json)


def show_report(report: Report, more: Mapping[str, Any], as_json: bool) -> None:
    value = asdict(report) | dict(more)
    _show(value, "  ".join(f"{name} {count}" for name, count in value.items()), as_json)


def raise_unless_clean(report: Report, stuck: int, failures: Iterable[TieredError]) -> None:
    """What a cron job must notice, as long as it is so. `failures`: of the collection."""
    if stuck:
        raise CorruptRecordError(stuck_sentence(stuck))
    for failure in failures:
        raise failure
    if report.failed:
        raise UnavailableError(f"{report.failed} entries could not be recovered now; try again")


async def show_entries(
    entries: AsyncIterator[Entry | Unreadable], now_ms: int, settings: Settings, limit: int | None, as_json: bool
) -> bool:
    """Prints each as it comes. False: there was nothing, and nothing was said of it."""
    rules = (now_ms, round(settings.lease.expiry_s * 1000), settings.recovery.attempts_max)

    def cells(listed: Listed) -> tuple[str, ...]:
        entry, where = listed
        name = entry.change.id if isinstance(entry, Entry) else entry.key
        return name, where.value, _beat(entry, now_ms), *_object_and_error(entry)

    found = ((entry, standing(entry, *rules)) async for entry in entries)
    return await _show_listed(found, ("id", "standing", "last beat", "object", "error"), cells, limit, as_json)


def show_nothing(sentence: str, as_json: bool) -> None:
    """Instead of an empty table; an empty JSON list speaks for itself."""
    if not as_json:
        write(sentence)


def show_entry(entry: Entry | Unreadable, row: Row | None, as_json: bool) -> None:
    value = _entry(entry)
    if isinstance(entry, Entry) and row is not None:
        token = entry.change.id
        shown = row.state is not None and (row.state.token == token or row.target == entry.change.new)
        value["row"] = {"shows_it": shown, "won": token in row.won, "refused": token in row.refused}
    _show_fields(value, as_json)


def show_retried(keys: Sequence[str], as_json: bool) -> None:
    _show({"retried": list(keys)}, f"{len(keys)} given back to recovery", as_json)


def show_findings(findings: Sequence[Finding], as_json: bool, stuck: int = 0) -> None:
    """A line each. Once all are printed, raises `CorruptRecordError` if entries are stuck, `ConfigurationError` if there is a problem."""
    wrong = [finding for finding in findings if finding.kind.value == "problem"]
    if as_json:
        write(dump({"ok": not wrong, "findings": [{"kind": each.kind.value, "sentence": each.sentence} for each in findings]}))
    else:
        for each in findings:
            write(f"{each.kind.value:8}{visible(each.sentence)}")
    if stuck:
        raise CorruptRecordError(stuck_sentence(stuck))
    if wrong:
        raise ConfigurationError(f"{len(wrong)} of these must be mended, see: problem")


def show_settings(shown: Mapping[str, Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        write(dump(shown))
        return
    table = _Table(("setting", "value", "from"))
    table.add([(key, _plain(each["value"]), str(each["from"])) for key, each in shown.items()])


# --- payloads --------------------------------------------------------------------------------------


_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


def content_type_of(file: str) -> str:
    """By the file's name. A compressed file is what it is compressed as: nothing would tell its reader to unpack it.

    Of Python's own table, so that one file gets one type on every machine.
    """
    import mimetypes

    guessed, packed = mimetypes.MimeTypes().guess_type(f"./{Path(file).name}", strict=False)
    if packed is not None:
        return _COMPRESSED.get(packed, CONTENT_TYPE_DEFAULT)
    return guessed or CONTENT_TYPE_DEFAULT


async def read_stdin() -> AsyncIterator[bytes]:
    """In threads that are left to themselves when the command is interrupted: nothing else ends a read."""
    if sys.stdin is None:
        raise InvalidRequestError("stdin is closed; name a file")
    source = cast(BufferedReader, sys.stdin.buffer)
    try:
        while piece := await to_thread.run_sync(source.read1, PIECE_BYTES, abandon_on_cancel=True):
            yield piece
    except OSError as error:
        raise InvalidRequestError(f"stdin cannot be read: {error.strerror}") from None


async def save(stored: StoredObject, file: str) -> None:
    """The payload to stdout, or into a file: whole, or the file is as it was. What is no plain file is written to."""
    if file in ("-", "/dev/stdout"):
        if sys.stdout is None:
            raise InvalidRequestError("stdout is closed; add --output FILE")
        sys.stdout.flush()
        await _write(stored, getattr(sys.stdout.buffer, "raw", sys.stdout.buffer))
        return
    try:
        target, is_plain = _target(file)
        if is_plain:
            await _replace(stored, target)
        else:  # opening waits until somebody reads a pipe
            with await to_thread.run_sync(lambda: open(file, "wb", buffering=0), abandon_on_cancel=True) as out:
                await _write(stored, out)
    except OSError as error:
        kind = UnavailableError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else InvalidRequestError
        raise kind(f"{file!r} cannot be written: {error.strerror}") from None


async def _replace(stored: StoredObject, target: Path) -> None:
    # A name of its own length: one that is derived from the target's may be too long where the target's is not.
    partial = target.with_name(f".tiered-{SystemRuntime().random.getrandbits(64):016x}.partial")
    try:
        with partial.open("xb", buffering=0) as out:
            _keep_mode(partial, target)
            await _write(stored, out)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


_OPEN_FILES = ("/dev/fd/", "/dev/std", "/proc/")


def _target(file: str) -> tuple[Path, bool]:
    """Where a symbolic link leads, and whether a plain file is there or may be made. Raises `OSError`."""
    target = Path(os.path.realpath(file))
    try:
        mode = os.stat(file).st_mode
    except FileNotFoundError:
        return target, bool(file) and not file.endswith("/")
    return target, stat.S_ISREG(mode) and not os.path.abspath(file).startswith(_OPEN_FILES)


def _keep_mode(partial: Path, target: Path) -> None:
    if target.exists():
        partial.chmod(stat.S_IMODE(target.stat().st_mode))


async def _write(stored: StoredObject, out: BinaryIO) -> None:
    """Without a buffer, whose lock a write that hangs would keep, and in threads that an interrupted command leaves behind."""
    async for piece in stored:
        rest = memoryview(piece)
        while rest:
            written = await to_thread.run_sync(out.write, rest, abandon_on_cancel=True)
            if written is None:  # somebody made the pipe one that does not wait, and it is full
                await wait_writable(out)
            rest = rest[written or 0:]


# --- words -----------------------------------------------------------------------------------------


def _entry(entry: Entry | Unreadable) -> dict[str, Any]:
    stuck = None if entry.stuck is None else {"error": entry.stuck.error, "at": _moment(entry.stuck.at_ms)}
    if isinstance(entry, Unreadable):
        return {"key": entry.key, "unreadable": entry.error, "raw": entry.raw.decode(errors="backslashreplace"), "stuck": stuck}
    change = entry.change
    return {
        "key": entry.key, "id": change.id, "object": change.object, "new": change.new, "old": change.old,
        # An upload session is a capability: whoever has it can end the upload. It is never printed.
        "upload": None if change.upload is None else "(session)",
        "owner": entry.owner, "attempt": entry.attempt, "heartbeat": _moment(entry.heartbeat_ms),
        "cleanup_after": _moment(entry.cleanup_after_ms), "stuck": stuck,
    }


def _beat(entry: Entry | Unreadable, now_ms: int) -> str:
    if isinstance(entry, Unreadable) or not entry.owner:
        return "-"
    return f"{max(0, now_ms - entry.heartbeat_ms) / 1000:.0f} s ago"


def _object_and_error(entry: Entry | Unreadable) -> tuple[str, str]:
    if isinstance(entry, Unreadable):
        return "-", entry.error
    return entry.change.object, entry.stuck.error if entry.stuck else ""


def _object(entry: Entry | Unreadable) -> str:
    return entry.change.object if isinstance(entry, Entry) else entry.error


def _show(value: Mapping[str, Any], line: str, as_json: bool) -> None:
    write(dump(value) if as_json else line)


def _show_fields(value: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        write(dump(value))
        return
    for name, item in value.items():
        write(f"{name:18}{_plain(item)}")


async def _show_listed(
    found: AsyncIterator[Listed], columns: Sequence[str], cells: Callable[[Listed], tuple[str, ...]], limit: int | None, as_json: bool
) -> bool:
    """A table, or a JSON list, printed as it comes, so that it needs no limit. A list that --limit cuts ends with {"more": true}."""
    table = _List() if as_json else _Table(columns)
    rows: list[Any] = []
    count, cut = 0, False
    async for listed in found:
        cut = count == limit
        if cut:
            break
        count += 1
        rows.append(_entry(listed[0]) | {"standing": listed[1].name.lower()} if as_json else cells(listed))
        if len(rows) == TABLE_ROWS:
            table.add(rows)
            rows = []
    if cut and as_json:
        rows.append({"more": True})
    table.add(rows)
    table.end()
    if cut:
        say_cut(count)
    return count > 0


class _List:
    """JSON, an item a line."""

    def __init__(self) -> None:
        self._before = "["

    def add(self, items: Sequence[Any]) -> None:
        for item in items:
            write(f"{self._before}{dump(item)}")
            self._before = ","

    def end(self) -> None:
        write("[]" if self._before == "[" else "]")


class _Table:
    """Columns as wide as what was in them so far; the last one ends where it ends, and no terminal's width cuts a name."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns: Sequence[str] | None = columns
        self._widths = [len(column) for column in columns]

    def add(self, rows: Sequence[tuple[str, ...]]) -> None:
        if not rows:
            return
        shown = [[visible(cell) for cell in row] for row in rows]
        if self._columns is not None:
            shown.insert(0, list(self._columns))
            self._columns = None
        self._widths = [max(width, *map(len, cells)) for width, cells in zip(self._widths, zip(*shown, strict=True), strict=True)]
        for row in shown:
            write("  ".join(f"{cell:{width}}" for cell, width in zip(row, self._widths, strict=True)).rstrip())

    def end(self) -> None:
        """Nothing follows a table."""


def _plain(value: Any) -> str:
    return "-" if value is None else visible(value) if isinstance(value, str) else dump(value)


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def _moment(unix_ms: int | None) -> str | None:
    """0 is what nobody knows: a heartbeat that was not read, a state that cannot be."""
    if not unix_ms:
        return None
    try:
        return _time(datetime.fromtimestamp(unix_ms / 1000, UTC))
    except (OverflowError, ValueError, OSError):
        return f"{unix_ms} ms after 1970, beyond any calendar"
