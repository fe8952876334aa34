"""Copies the files of a directory, or the objects of a bucket of GCS, into a store.

    python examples/migrate.py --to tiered.yaml --usecase photos /srv/photos
    python examples/migrate.py --to tiered.yaml --usecase photos gs://old-bucket/photos/

It may be interrupted at any time, and run again: what is in the store with the same size is left out. At the end it
compares the source with the store. It ends with 1 if something could not be copied or differs, or if the source is
empty. Links to directories are not followed, and are named.
"""

from __future__ import annotations

import argparse
import mimetypes
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import anyio
from anyio import to_thread

from tiered import InvalidRequestError, Metadata, ObjectId, PutRequest, Settings, TieredStorage, open_storage

if TYPE_CHECKING:
    from google.cloud.storage import Client


# --8<-- [start:sources]
@dataclass(frozen=True)
class Found:
    """One object of the source. `body`: a path, or a file that is read when the object is copied. `size`: in bytes.

    `fault`: why it cannot be copied.
    """

    name: str
    body: Path | BinaryIO = field(repr=False)
    size: int
    created_ns: int
    content_type: str | None = None
    fault: str | None = None


def in_bucket(client: Client, bucket: str, prefix: str) -> Iterator[Found]:
    """The objects whose names begin with `prefix`. `blob.open` sends no request before it is read."""
    for blob in client.list_blobs(bucket, prefix=prefix):
        created_ns = int(blob.time_created.timestamp() * 1_000_000) * 1000
        yield Found(blob.name.removeprefix(prefix), blob.open("rb"), blob.size, created_ns, blob.content_type)
# --8<-- [end:sources]


def in_directory(root: Path) -> Iterator[Found]:
    """The files below a directory. What is there and cannot be copied comes with a `fault`: nothing is left out."""
    unread: list[OSError] = []
    for folder, folders, names in os.walk(root, onerror=unread.append):
        folders.sort()
        for name in sorted([*names, *(each for each in folders if os.path.islink(os.path.join(folder, each)))]):
            yield _file(root, Path(folder, name))
    for error in unread:
        yield _faulty(root, Path(error.filename), error.strerror or str(error))


def _file(root: Path, path: Path) -> Found:
    try:
        about = path.stat()
    except OSError as error:
        return _faulty(root, path, error.strerror or str(error))
    if not stat.S_ISREG(about.st_mode):
        return _faulty(root, path, "it is no file, or a link to a directory")
    return Found(path.relative_to(root).as_posix(), path, about.st_size, about.st_mtime_ns)


def _faulty(root: Path, path: Path, fault: str) -> Found:
    return Found(str(root) if path == root else path.relative_to(root).as_posix(), path, 0, 0, fault=fault)


# --8<-- [start:copy]
class Migration:
    """Copies into one usecase. The name of an object in the source becomes its key.

    `found`: how many objects the source has. `failed`: one sentence for each that could not be copied.
    """

    def __init__(self, storage: TieredStorage, usecase: str) -> None:
        self._storage = storage
        self._usecase = usecase
        self.copied = self.found = 0
        self.failed: list[str] = []

    async def copy(self, source: Iterable[Found]) -> None:
        """Copies what is not in the store yet. Many objects are under way at once; no failure ends the others."""
        async with self._storage.put_many(self.missing(source)) as results:
            async for result in results:
                if result.error is None:
                    self.copied += 1
                else:
                    self.failed.append(f"{result.request.object_id}: {result.error}")

    async def missing(self, source: Iterable[Found]) -> AsyncIterator[PutRequest]:
        """Yields a request for each object that is not in the store, or is there with another size."""
        async for found in each_in_thread(source):
            self.found += 1
            if found.fault is not None:
                self.failed.append(f"{found.name}: {found.fault}")
                continue
            try:
                request = self._request(found)
            except InvalidRequestError as error:  # a name or a content type that the store does not take
                self.failed.append(f"{found.name}: {error}")
                continue
            head = await self._storage.head(request.object_id)
            if head is None or head.size != found.size:
                yield request
    # --8<-- [end:copy]

    def _request(self, found: Found) -> PutRequest:
        content_type = found.content_type or mimetypes.guess_type(found.name)[0] or "application/octet-stream"
        metadata = Metadata(content_type=content_type, size=found.size, time_created_ns=found.created_ns)
        return PutRequest(ObjectId.create(self._usecase, found.name), found.body, metadata)


async def each_in_thread(source: Iterable[Found]) -> AsyncIterator[Found]:
    """Yields what the source has. It is read in a thread, because listing a directory or a bucket takes time."""
    rest = iter(source)
    while (found := await to_thread.run_sync(next, rest, None)) is not None:
        yield found


# --8<-- [start:main]
async def migrate(to: str | Settings, usecase: str, source: str) -> int:
    async with open_storage(to) as storage:
        migration = Migration(storage, usecase)
        await migration.copy(opened(source))
        differing = [str(request.object_id) async for request in Migration(storage, usecase).missing(opened(source))]
    print(f"{migration.copied} copied, {len(migration.failed)} failed, {len(differing)} not in the store as they are in the source")
    for line in [*migration.failed, *differing]:
        print(line if line.isprintable() else ascii(line), file=sys.stderr)  # a name may steer the terminal
    if not migration.found:
        print(f"{source} has no objects: is its name right?", file=sys.stderr)
    return 1 if migration.failed or differing or not migration.found else 0
# --8<-- [end:main]


def opened(source: str) -> Iterator[Found]:
    if not source.startswith("gs://"):
        return in_directory(Path(source))
    from google.cloud.storage import Client

    bucket, _, prefix = source.removeprefix("gs://").partition("/")
    return in_bucket(Client(), bucket, prefix if prefix.endswith("/") or not prefix else f"{prefix}/")


def main(arguments: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description="Copies files, or the objects of a bucket, into a store.")
    parser.add_argument("--to", required=True, help="the settings file of the store")
    parser.add_argument("--usecase", required=True, help="what the objects are for; their names become keys")
    parser.add_argument("source", help="a directory, or gs://BUCKET/PREFIX")
    given = parser.parse_args(arguments)
    return anyio.run(migrate, given.to, given.usecase, given.source)


if __name__ == "__main__":
    sys.exit(main())
