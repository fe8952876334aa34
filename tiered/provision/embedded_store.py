"""`tiered check` of an embedded store: tests its directory, its database and its blobs' directory as a store would.

A look reads all of the database. It does not read blobs, because each block of a blob is verified when it is read. It
writes a test file that it removes again, and values that the database already holds. As an opening does, it makes
`blobs/` and `uploads/` if they are missing, and takes over a database from before 0.1.0. *Failure* of a part is a
problem among the findings.
"""

from __future__ import annotations

from pathlib import Path

from changelog.base.errors import TieredError
from changelog.base.runtime import Runtime
from changelog.sqlite.checkpoints import SQLITE_VERSION, has_reset_bug
from changelog.sqlite.database import Database
from tiered.embedded.blobs import FileBlobs, refuse_if_gone
from tiered.embedded.rows import SqliteRows
from tiered.provision.findings import Notice, no_changelog, note, ok, problem

ROWS_PAGE = 200
"""Rows read from one snapshot. While a snapshot is open, SQLite cannot use the space of overwritten values again."""

CORRUPT_SHOWN = 5


async def inspect_directory(directory: Path, database: str, changelog: str | None, runtime: Runtime) -> list[Notice]:
    """The findings about an embedded store.

    `database`: the name of its file, which must exist. `changelog`: as in the settings.
    """
    findings, may_make = [], False
    try:
        async with Database.open(directory / database, runtime, beside=directory / "blobs") as opened:
            faults = [fault for (fault,) in await opened.read(lambda connection: connection.execute("PRAGMA integrity_check").fetchall())]
            if faults == ["ok"]:
                rows = SqliteRows(opened, runtime)
                findings += await _inspect_rows(directory / database, rows)
                await opened.try_writing()
                findings.insert(0, ok(f"{directory / database} can be written, and SQLite finds it whole"))
                await refuse_if_gone(directory, rows, empty=True)
                may_make = True
            else:
                first = " ".join(faults[0].split())
                findings.append(problem(f"{directory / database} is damaged: restore it from a backup ({first})"))
    except TieredError as error:
        findings.append(problem(str(error)))
    findings.append(_of_sqlite(directory / database))
    if may_make or (directory / "blobs").is_dir():
        findings += await inspect_blobs(directory, runtime)
    findings += _who_else(directory, directory / database)
    if changelog != "sqlite":
        findings.append(no_changelog("sqlite"))
    return findings


async def inspect_blobs(directory: Path, runtime: Runtime) -> list[Notice]:
    """The findings about the blobs of a store, whose rows may be elsewhere."""
    try:
        await FileBlobs.open_directory(directory, runtime, verify=True)
    except TieredError as error:
        return [problem(str(error))]
    return [ok(f"{directory} can hold blobs")]


def _of_sqlite(path: Path) -> Notice:
    name = f"SQLite {'.'.join(map(str, SQLITE_VERSION))}"
    if not has_reset_bug(SQLITE_VERSION):
        return ok(f"{name} runs, which does not have the WAL-reset bug")
    return note(
        f"{name} runs, which has the WAL-reset bug (cured in 3.51.3): this software loses nothing by it, but a commit can be lost if "
        f"another program writes to {path}, or a version of this software that does not print this line"
    )  # fmt: skip


def _who_else(directory: Path, database: Path) -> list[Notice]:
    """A note, if the modes let other users of this machine read the store."""
    try:
        outer = directory.stat().st_mode
        inner = database.stat().st_mode | (directory / "blobs").stat().st_mode
    except OSError:  # the other findings say what is missing
        return []
    # To look into a directory one needs the right to execute it. To read a file, that to read.
    others = [who for who, enter, read in (("its group", 0o010, 0o040), ("everybody", 0o001, 0o004)) if outer & enter and inner & read]
    if not others:
        return []
    return [note(
        f"the modes of {directory} let {' and '.join(others)} read the store, as far as the directories above do: "
        f"if nobody shares it, run chmod -R go= {directory}"
    )]  # fmt: skip


async def _inspect_rows(path: Path, rows: SqliteRows) -> list[Notice]:
    """A problem for each object that cannot be read, the first few by name; otherwise how much was verified."""
    after: bytes | None = b""
    seen = corrupt = without = 0
    findings = []
    while after is not None:
        page = await rows.verify(after, ROWS_PAGE)
        for row in page.corrupt[: max(0, CORRUPT_SHOWN - corrupt)]:
            findings.append(problem(f"{row.path} in {path} cannot be read: {row.fault}"))
        seen, corrupt, without, after = seen + page.rows, corrupt + len(page.corrupt), without + page.without_checksum, page.last
    if corrupt > CORRUPT_SHOWN:
        findings.append(problem(f"{corrupt - CORRUPT_SHOWN} more objects in {path} cannot be read"))
    if not corrupt:
        unverified = f", but for {without} from before 0.1.0, which have none" if without else ""
        findings.append(ok(f"all {seen} rows in it match their checksums{unverified}; blobs are verified when they are read"))
    return findings
