"""What the commands print: JSON for programs, tables for people. No decisions are made here."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

import typer
from anyio import to_thread
from rich.console import Console
from rich.table import Table

from changelog.change import Entry, Unreadable
from changelog.lease import Standing, standing
from recovery.loop import Report
from tiered.backends import Row
from tiered.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, UnavailableError
from tiered.findings import Finding, problems
from tiered.metadata import encode_metadata
from tiered.settings import Settings
from tiered.stored import PIECE_BYTES, ObjectHead, PutResult, StoredObject


class AbsentError(Exception):
    """There is no such object or entry."""


def absent(object_id: str) -> AbsentError:
    return AbsentError(f"there is no object {object_id}, or it has expired")


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
    typer.echo(_dump(text) if as_json else text)


def show_survey(found: Sequence[tuple[Entry | Unreadable, Standing]], open_count: int, as_json: bool) -> None:
    """`open_count`: of all entries, also those that are held."""
    if as_json:
        typer.echo(_dump([_entry(entry) | {"standing": where.name.lower()} for entry, where in found]))
        return
    nothing = "nothing to recover"
    if open_count:
        nothing += f" yet: 'tiered log list' says what each of {open_count} open changes waits for"
    _table(["key", "standing", "object"], [(entry.key, where.value, _object(entry)) for entry, where in found], nothing)


def show_report(report: Report, collected: int | None, as_json: bool) -> None:
    value = asdict(report) | ({} if collected is None else {"collected": collected})
    _show(value, "  ".join(f"{name} {count}" for name, count in value.items()), as_json)


def raise_unless_clean(report: Report) -> None:
    """What a cron job must notice."""
    if report.parked:
        raise CorruptRecordError(f"{report.parked} entries were parked: look at them with 'tiered log list --stuck'")
    if report.failed:
        raise UnavailableError(f"{report.failed} entries could not be recovered now; try again")


def show_entries(entries: Sequence[Entry | Unreadable], now_ms: int, settings: Settings, as_json: bool) -> None:
    rules = (now_ms, round(settings.lease.expiry_s * 1000), settings.recovery.attempts_max)
    standings = [standing(entry, *rules) for entry in entries]
    if as_json:
        typer.echo(_dump([_entry(entry) | {"standing": where.name.lower()} for entry, where in zip(entries, standings, strict=True)]))
        return
    rows = [
        (entry.change.id if isinstance(entry, Entry) else entry.key, where.value, _beat(entry, now_ms), *_object_and_error(entry))
        for entry, where in zip(entries, standings, strict=True)
    ]
    _table(["id", "standing", "last beat", "object", "error"], rows, "the changelog is empty")


def show_entry(entry: Entry | Unreadable, row: Row | None, as_json: bool) -> None:
    value = _entry(entry)
    if isinstance(entry, Entry) and row is not None:
        token = entry.change.id
        shown = row.state is not None and (row.state.token == token or row.target == entry.change.new)
        value["row"] = {"shows_it": shown, "won": token in row.won, "refused": token in row.refused}
    _show_fields(value, as_json)


def show_retried(keys: Sequence[str], as_json: bool) -> None:
    _show({"retried": list(keys)}, f"{len(keys)} given back to recovery", as_json)


def show_findings(findings: Sequence[Finding], as_json: bool) -> None:
    """A line each. Raises `ConfigurationError` if there is a problem among them, once all are printed."""
    wrong = problems(findings)
    if as_json:
        typer.echo(_dump({"ok": not wrong, "findings": [{"kind": each.kind.value, "sentence": each.sentence} for each in findings]}))
    else:
        for each in findings:
            typer.echo(f"{each.kind.value:8}{each.sentence}")
    if wrong:
        raise ConfigurationError(f"{len(wrong)} of these must be mended, see: problem")


def show_settings(shown: Mapping[str, Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(_dump(shown))
        return
    _table(["setting", "value", "from"], [(key, _plain(each["value"]), str(each["from"])) for key, each in shown.items()], "")


async def read_stdin() -> AsyncIterator[bytes]:
    """In threads that are left to themselves when the command is interrupted: nothing else ends a read."""
    if sys.stdin is None:
        raise InvalidRequestError("stdin is closed; name a file")
    source = cast(BufferedReader, sys.stdin.buffer)
    while piece := await to_thread.run_sync(source.read1, PIECE_BYTES, abandon_on_cancel=True):
        yield piece


async def save(stored: StoredObject, file: str) -> None:
    """The payload to stdout, or into a file: whole, or the file is as it was. What is no plain file is written to."""
    if file == "-":
        if sys.stdout is None:
            raise InvalidRequestError("stdout is closed; add --output FILE")
        await _write(stored, sys.stdout.buffer)
        return
    target, is_plain = _target(file)
    try:
        if is_plain:
            await _replace(stored, target)
        else:
            with target.open("wb") as out:
                await _write(stored, out)
    except OSError as error:
        kind = UnavailableError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else InvalidRequestError
        raise kind(f"{file} cannot be written: {error.strerror}") from None


async def _replace(stored: StoredObject, target: Path) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as out:
            _keep_mode(partial, target)
            await _write(stored, out)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _target(file: str) -> tuple[Path, bool]:
    """Where a symbolic link leads, and whether a plain file is there or may be made."""
    target = Path(file).resolve()
    return target, target.is_file() or not target.exists()


def _keep_mode(partial: Path, target: Path) -> None:
    if target.exists():
        partial.chmod(stat.S_IMODE(target.stat().st_mode))


async def _write(stored: StoredObject, out: BinaryIO) -> None:
    async for piece in stored:
        await to_thread.run_sync(out.write, piece)
    await to_thread.run_sync(out.flush)


def _entry(entry: Entry | Unreadable) -> dict[str, Any]:
    stuck = None if entry.stuck is None else {"error": entry.stuck.error, "at_ms": entry.stuck.at_ms}
    if isinstance(entry, Unreadable):
        return {"key": entry.key, "unreadable": entry.error, "raw": entry.raw.decode(errors="backslashreplace"), "stuck": stuck}
    change = entry.change
    return {
        "key": entry.key, "id": change.id, "object": change.object, "new": change.new, "old": change.old,
        # An upload session is a capability: whoever has it can end the upload. It is never printed.
        "upload": None if change.upload is None else "(session)",
        "owner": entry.owner, "attempt": entry.attempt, "heartbeat_ms": entry.heartbeat_ms,
        "cleanup_after_ms": entry.cleanup_after_ms, "stuck": stuck,
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
    typer.echo(_dump(value) if as_json else line)


def _show_fields(value: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(_dump(value))
        return
    for name, item in value.items():
        typer.echo(f"{name:18}{_plain(item)}")


def _table(columns: Sequence[str], rows: Sequence[tuple[str, ...]], nothing: str) -> None:
    if not rows:
        typer.echo(nothing)
        return
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(_escape(cell) for cell in row))
    console = PipedConsole(soft_wrap=not sys.stdout.isatty(), highlight=False, markup=False)
    if not sys.stdout.isatty():
        console.width = 4096  # a pipe has no width: cut nothing that a program may read
    console.print(table)


def _escape(cell: str) -> str:
    return cell.replace("\n", " ")


def _plain(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else _dump(value)


def _time(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class PipedConsole(Console):
    def on_broken_pipe(self) -> None:
        """rich's own ends the program with 1; whoever closed the pipe has seen enough."""
        raise BrokenPipeError
