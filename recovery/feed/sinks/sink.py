"""`Sink`, what every place does to which a change feed is delivered. One contract suite checks all of them.

    writer -> deliver(parcel) -> acknowledged       the sink has it durably, and readers may read it
                              -> an error           nobody knows: the writer delivers the same parcel again, for ever

A parcel has the same bytes however often it is delivered, also by another process. The first parcel of a generation
has time 0. Parcels come in the order of their times, but a parcel may come again after later ones: a writer that was
fenced does not know it yet. So a sink may keep a parcel twice, if its readers can tell, and never keeps other bytes
under the same name. A sink that finds nothing of a generation when a later parcel comes has lost what it acknowledged.
It refuses the parcel: without the earlier ones, no reader would ever get past them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, Protocol, Self, cast, get_args

from recovery.feed.files import Form, read
from recovery.feed.messages import Message

Suffix = Literal["json", "avro"]

CONTENT_TYPES: dict[Suffix, str] = {"json": "application/jsonl", "avro": "application/avro"}
"""The media type of a file, by its suffix."""

_FOLDER = re.compile(r"generation-([0-9]{16})")
_NAME = re.compile(rf"([0-9]{{19}})\.({'|'.join(get_args(Suffix))})")


@dataclass(frozen=True, slots=True)
class Parcel:
    """One committed transaction of a feed, as a file that `recovery.feed.files` reads. `Parcel.of` makes one.

    `generation`: of the feed, milliseconds since 1970; another one is another feed. `time`: of the transaction, unique
    in the generation; 0: the first one. `data`: the bytes of the file: messages as JSON lines, or an Avro container.
    `sha256`: of `data`, in hex.
    """

    generation: int
    time: int
    data: bytes
    suffix: Suffix
    sha256: str

    @classmethod
    def of(cls, generation: int, time: int, data: bytes, suffix: Suffix) -> Self:
        """Returns the parcel of these bytes, with their checksum."""
        return cls(generation, time, data, suffix, sha256(data).hexdigest())

    @property
    def folder(self) -> str:
        """The name of the folder that holds the files of this generation."""
        return f"generation-{self.generation:016d}"

    @property
    def name(self) -> str:
        """The name of the file. The order of names is the order of times."""
        return f"{self.time:019d}.{self.suffix}"

    @property
    def path(self) -> str:
        """The folder and the name, with a slash between them."""
        return f"{self.folder}/{self.name}"

    def messages(self) -> Iterator[Message]:
        """Yields the messages of the file. Raises `FeedError` if `data` is no such file as the suffix says.

        `ConfigurationError`: it is Avro, and fastavro is not installed.
        """
        form = Form.JSON if self.suffix == "json" else Form.AVRO
        opened = cast(io.RawIOBase, io.BytesIO(self.data))
        return (located.message for located in read(self.path, form, open_file=lambda _: opened))


def generation_of(folder: str) -> int | None:
    """Returns the generation whose files are in a folder of this name, or None if it is no such name."""
    found = _FOLDER.fullmatch(folder)
    return None if found is None else int(found[1])


def time_of(name: str) -> tuple[int, Suffix] | None:
    """Returns the time and the suffix of a file of this name, or None if a parcel has no such name."""
    found = _NAME.fullmatch(name)
    return None if found is None or int(found[1]) >= 1 << 63 else (int(found[1]), cast(Suffix, found[2]))


class Sink(Protocol):
    name: str
    """What a person calls it: its path or URL, without a password."""

    async def deliver(self, parcel: Parcel) -> None:
        """Returns once the parcel is acknowledged: it is durable there, and whole. Safe to repeat, also late.

        `UnavailableError`: it does not answer, or refuses for now (a full disk, status 500). `ConfigurationError`: no
        repetition will help before somebody changes something (no permission, no such bucket).
        `CorruptRecordError`: under this name it holds other bytes, which it leaves as they are. After a cancellation,
        the sink has the whole parcel or nothing that a reader sees.
        """

    async def aclose(self) -> None:
        """Lets go of connections. Safe to repeat. Nothing is flushed: what was acknowledged is there already."""
