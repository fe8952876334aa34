"""`Sink`, what every place does to which a change feed is delivered. One contract suite checks all of them.

    writer -> deliver(segment) -> acknowledged       the sink has it durably, and readers may read it
                              -> an error           nobody knows: the writer delivers the same segment again, for ever

A segment has the same bytes however often it is delivered, also by another process. The first segment of a generation
has time 0. Segments come in the order of their times, but a segment may come again after later ones: a writer that was
fenced does not know it yet. So a sink may keep a segment twice, if its readers can tell, and never keeps other bytes
under the same name. A sink that finds nothing of a generation when a later segment comes has lost what it acknowledged.
It refuses the segment: without the earlier ones, no reader would ever get past them.

A place belongs to one feed. A *mark*, the file `_feed.json` beside the folders, says to which one. Readers leave it
out. The sink only reads and creates it, and tells what is there. The writer judges that (`writer/delivery.py`).
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, Protocol, Self, cast, get_args

from changelog.base.errors import ConfigurationError, CorruptRecordError, newer_version
from recovery.display import escape_controls
from recovery.feed.files import FileFormat, is_left_out, read
from recovery.feed.messages import Message

Suffix = Literal["json", "avro"]

CONTENT_TYPES: dict[Suffix, str] = {"json": "application/jsonl", "avro": "application/avro"}
"""The media type of a file, by its suffix."""

MARK = "_feed.json"
"""The name of the file that says whose feed the files of a place are."""
MARK_BYTES_MAX = 8192
MARK_TYPE = "application/json"

_FOLDER = re.compile(r"generation-([0-9]{16})")
_NAME = re.compile(rf"([0-9]{{19}})\.({'|'.join(get_args(Suffix))})")


@dataclass(frozen=True, slots=True)
class Segment:
    """One committed transaction of a feed, as a file that `recovery.feed.files` reads. `Segment.of` makes one.

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
        """Returns the segment of these bytes, with their checksum."""
        return cls(generation, time, data, suffix, sha256(data).hexdigest())

    @property
    def folder(self) -> str:
        """The name of the folder that holds the files of this generation."""
        return folder_of(self.generation)

    @property
    def name(self) -> str:
        """The name of the file. The order of names is the order of times."""
        return f"{self.time:019d}.{self.suffix}"

    @property
    def path(self) -> str:
        """The folder and the name, with a slash between them."""
        return f"{self.folder}/{self.name}"

    def other_bytes(self, sink: str) -> CorruptRecordError:
        """Returns the error of a sink that has something else under the name of this segment."""
        return CorruptRecordError(
            f"{sink}/{self.path} has other bytes than the feed ({len(self.data)} bytes, sha256 {self.sha256}): it stays as it is; find out"
            " who wrote it, and move it away"
        )

    def messages(self) -> Iterator[Message]:
        """Yields the messages of the file. Raises `FeedError` if `data` is no such file as the suffix says.

        `ConfigurationError`: it is Avro, and fastavro is not installed.
        """
        form = FileFormat.JSON if self.suffix == "json" else FileFormat.AVRO
        opened = cast(io.RawIOBase, io.BytesIO(self.data))
        return (located.message for located in read(self.path, form, open_file=lambda _: opened))


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose feed is in a place. `feed`: its id, by which feeds are compared. `store`: what a person calls the store."""

    feed: str
    store: str

    def to_bytes(self) -> bytes:
        """Returns the mark."""
        return f"{json.dumps({'feed': self.feed, 'store': self.store})}\n".encode()

    @classmethod
    def from_bytes(cls, raw: bytes, where: str) -> Self:
        """Reads a mark. `where`: its path or address. `ConfigurationError`: it is none."""
        try:
            found: Any = json.loads(raw) if len(raw) <= MARK_BYTES_MAX else None
            if type(version := found.get("v", 1)) is int and version > 1:
                raise ConfigurationError(newer_version(where, version, "version 1"))
            feed, store = found["feed"], found["store"]
        except ConfigurationError:  # which is a ValueError, too
            raise
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            feed = store = None
        if not isinstance(feed, str) or not isinstance(store, str) or not feed:
            raise ConfigurationError(f"{where} does not say whose feed it is about: find out who wrote it, and move it away")
        return cls(feed, escape_controls(store))


@dataclass(frozen=True, slots=True)
class SinkContent:
    """What is in a place. `owner`: whom its mark names; None: it has none. `newest`: the latest generation that has a
    file; None: none has. `times`: those of the files that were asked for, in order. `foreign`: names beside these files
    that no feed gives, and that a reader would read.
    """

    owner: Owner | None
    newest: int | None
    times: tuple[int, ...]
    foreign: tuple[str, ...] = ()


def folder_of(generation: int) -> str:
    """Returns the name of the folder that holds the files of a generation."""
    return f"generation-{generation:016d}"


def generation_of(folder: str) -> int | None:
    """Returns the generation whose files are in a folder of this name, or None if it is no such name."""
    found = _FOLDER.fullmatch(folder)
    return None if found is None else int(found[1])


def time_of(name: str) -> tuple[int, Suffix] | None:
    """Returns the time and the suffix of a file of this name, or None if a segment has no such name."""
    found = _NAME.fullmatch(name)
    return None if found is None or int(found[1]) >= 1 << 63 else (int(found[1]), cast(Suffix, found[2]))


def is_foreign(name: str) -> bool:
    """Whether a file of this name is none of a feed, and readers of its folder would read it all the same."""
    return time_of(name) is None and not is_left_out(name)


def refuse_foreign(names: Sequence[str], folder: str) -> None:
    """Raises `ConfigurationError` if there are such names. `folder`: what a person calls the place where they are."""
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise ConfigurationError(
            f"{folder} has {names[0]!r}{more}, and a feed did not put that there; its readers would fail: move it away"
        )


class Sink(Protocol):
    name: str
    """What a person calls it: its path or URL, without a password."""

    async def deliver(self, segment: Segment) -> None:
        """Returns once the segment is acknowledged: it is durable there, and whole. Safe to repeat, also late.

        `UnavailableError`: it does not answer, or refuses for now (a full disk, status 500). `ConfigurationError`: no
        repetition will help before somebody changes something (no permission, no such bucket).
        `CorruptRecordError`: under this name it holds other bytes, which it leaves as they are. After a cancellation,
        the sink has the whole segment or nothing that a reader sees.
        """

    async def look(self, generation: int, since: int) -> SinkContent | None:
        """Returns what is there, with the times of the files of this generation from `since` on. None: it cannot tell.

        With `since` 0 all foreign files of this generation are told; else at least those whose names come later.

        `UnavailableError` and `ConfigurationError`: as of `deliver`; also, its mark cannot be read.
        """

    async def claim(self, owner: Owner) -> bool:
        """Marks the place as that of this feed, durably, unless it has a mark. Safe to repeat. False: it takes no mark.

        Raises as `deliver`. Whoever claims looks again afterwards: another feed may have been faster.
        """

    async def aclose(self) -> None:
        """Lets go of connections. Safe to repeat. Nothing is flushed: what was acknowledged is there already."""
