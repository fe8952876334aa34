"""`verify_export`: reads all of an export again, and compares it with its manifest. It needs no store.

Each file must be there with the size, the SHA-256 and the crc32c of its row; each part with the SHA-256 that
`manifest.json` tells. `payload_of` judges that, for an import, too.
*Failure*: what is wrong with a file, or a part, is a result, and does not end the call.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from inspect import isawaitable

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError
from changelog.base.runtime import Runtime, SystemRuntime
from tiered.bulk import Bulk
from tiered.exports.manifest import BEGUN, EXPORTED, MANIFEST, EndedExport, ExportRow, RowsPart, decode_ended, read_file, read_part
from tiered.exports.payloads import Summing
from tiered.exports.places import ExportPlace, open_place
from tiered.settings import Settings
from tiered.text import quoted

CONCURRENCY = 16
KEPT = 100


@dataclass(slots=True)
class VerifyReport:
    """`whole`: how many files are as the manifest says, with `bytes` in all. `wrong`: how many are not, and how many
    parts of the manifest itself are damaged or missing; of the objects of these nothing is known.

    `first_wrong`: a sentence for each of the first hundred. `complete`: nothing is wrong, and the export says that it
    holds all objects. `left_out`: as its `ExportReport` said it.
    """

    whole: int = 0
    wrong: int = 0
    bytes: int = 0
    complete: bool = False
    first_wrong: list[str] = field(default_factory=list)
    left_out: int = 0


async def verify_export(
    place: str | os.PathLike[str], *, settings: Settings | None = None, runtime: Runtime | None = None, concurrency: int | None = None,
    on_wrong: Callable[[str], object] | None = None,
) -> VerifyReport:  # fmt: skip
    """Reads an export again and compares each byte's checksum. `settings`: where the bucket is, as a store has them.

    `on_wrong` is called with a sentence for each file that is missing or differs, and may be an async function. Raises
    `ConfigurationError` (there is no export that has ended, or a newer software wrote it), `CorruptRecordError`
    (`manifest.json` itself is damaged) and `UnavailableError`.
    """
    if settings is not None and not isinstance(settings, Settings):
        raise InvalidRequestError(f"settings are Settings, or None, not {quoted(settings)}")
    if on_wrong is not None and not callable(on_wrong):
        raise InvalidRequestError(f"on_wrong is a function, or None, not {quoted(on_wrong)}")
    concurrency = CONCURRENCY if concurrency is None else concurrency
    if type(concurrency) is not int or not 1 <= concurrency <= 1000:
        raise InvalidRequestError(f"concurrency is {quoted(concurrency)}: pass a number from 1 to 1000")
    async with open_place(place, runtime or SystemRuntime(), settings, writes=False) as opened:
        ended = await ended_export(opened)
        report = VerifyReport(left_out=ended.counts.left_out)

        async def compare(row: ExportRow) -> str | None:
            return await wrong_with(opened, row)

        async def tell(wrong: str) -> None:
            report.wrong += 1
            if len(report.first_wrong) < KEPT:
                report.first_wrong.append(wrong)
            if on_wrong is not None and isawaitable(answer := on_wrong(wrong)):
                await answer

        damaged: dict[str, CorruptRecordError] = {}
        async with Bulk(rows_of(opened, ended, damaged), ExportRow, compare, concurrency) as results:
            async for result in results:
                if (wrong := result.value) is None:
                    report.whole += 1
                    assert result.request.sums is not None, "only what was exported is compared"
                    report.bytes += result.request.sums.size
                    continue
                await tell(wrong)
        for error in damaged.values():
            await tell(str(error))
    report.complete = ended.complete and not report.wrong
    return report


async def ended_export(place: ExportPlace) -> EndedExport:
    """What `manifest.json` tells. `ConfigurationError`: there is no export, or it has not ended."""
    text = await read_file(place, MANIFEST)
    if text is not None:
        return decode_ended(text, f"{place.name}/{MANIFEST}")
    if await read_file(place, BEGUN) is not None:
        raise ConfigurationError(f"the export in {place.name} has not ended: give its command again, which goes on")
    raise ConfigurationError(f"{place.name} holds no export: it has no {MANIFEST}")


async def rows_of(
    place: ExportPlace, ended: EndedExport, damaged: dict[str, CorruptRecordError] | None = None
) -> AsyncGenerator[ExportRow, None]:
    """The rows of all parts that have a file. `damaged`: takes errors of parts, by file; None: the first ends it."""
    for part in ended.parts:
        try:
            rows = await rows_of_part(place, ended, part)
        except CorruptRecordError as error:
            if damaged is None:
                raise
            damaged[part.file] = error
            continue
        for row in rows:
            if row.state == EXPORTED:
                yield row


async def rows_of_part(place: ExportPlace, ended: EndedExport, part: RowsPart) -> list[ExportRow]:
    """All rows of a part. `CorruptRecordError`: it is not the one that `manifest.json` tells of."""
    read = await read_part(place, part.file, ended.begun.export)
    if read is None or read[0] != part:
        raise CorruptRecordError(
            f"{place.name}/{part.file} is not the part that {MANIFEST} tells of: restore it, or export to this place again"
        )
    return read[1]


async def payload_of(place: ExportPlace, row: ExportRow) -> AsyncGenerator[bytes, None]:
    """The bytes of an object. `CorruptRecordError` at their end, or before: they are not what the row tells, in all."""
    assert row.sums is not None, "only what was exported has a file"
    where, size = f"{row.path}: its file {row.file}", 0
    try:
        async with aclosing(place.read(row.file)) as source:
            summing = Summing(source)
            async for chunk in aiter(summing):
                size += len(chunk)
                if size > row.sums.size:
                    break
                yield chunk
    except FileNotFoundError:
        raise CorruptRecordError(f"{where} is missing in {place.name}: restore it, or export again to this place") from None
    except (CorruptRecordError, ConfigurationError) as error:
        raise CorruptRecordError(f"{where} cannot be read: {error}") from error
    found, told = summing.sums(), row.sums
    if found.size != told.size:
        raise CorruptRecordError(f"{where} has {'more' if found.size > told.size else found.size} bytes, and not {told.size}")
    if found.sha256 != told.sha256 or (None not in (found.crc32c, told.crc32c) and found.crc32c != told.crc32c):
        what = "other bytes than were exported" if found.sha256 != told.sha256 else f"the crc32c {found.crc32c}, and not {told.crc32c}"
        raise CorruptRecordError(f"{where} has {what}: restore it, or export to this place again with --verify")


async def wrong_with(place: ExportPlace, row: ExportRow) -> str | None:
    """What is wrong with the file of an object, in a sentence. None: it is whole. `UnavailableError`: nobody knows."""
    try:
        async with aclosing(payload_of(place, row)) as chunks:
            async for _ in chunks:
                pass
    except CorruptRecordError as error:
        return str(error)
    return None
