"""`Sink`, what every place does to which a change feed is delivered. One contract suite checks all of them.

    writer -> deliver(parcel) -> acknowledged       the sink has it durably, and readers may read it
                              -> an error           nobody knows: the writer delivers the same parcel again, for ever

A parcel has the same bytes however often it is delivered, also by another process. Parcels of one generation come in
the order of their times, but a parcel may come again after later ones: a writer that was fenced does not know it yet.
So a sink may keep a parcel twice, if its readers can tell, and never keeps other bytes under the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Parcel:
    """One committed transaction of a feed, as a file that `recovery.feed.files` reads.

    `generation`: of the feed; another one is another feed. `time`: of the transaction, unique in the generation.
    `data`: the bytes of the file: messages as JSON lines or an Avro container. `suffix`: `json` or `avro`. `sha256`: of
    `data`, in hex.
    """

    generation: int
    time: int
    data: bytes
    suffix: str
    sha256: str

    @property
    def folder(self) -> str:
        """The name of the folder that holds the files of this generation."""
        return f"generation-{self.generation:016d}"

    @property
    def name(self) -> str:
        """The name of the file. The order of names is the order of times."""
        return f"{self.time:019d}.{self.suffix}"


class Sink(Protocol):
    name: str
    """What a person calls it: its path or URL, without a password."""

    async def deliver(self, parcel: Parcel) -> None:
        """Returns once the parcel is acknowledged: it is durable there, and whole. Safe to repeat, also late.

        `UnavailableError`: it does not answer, or refuses for now (a full disk, status 500). `ConfigurationError`: no
        repetition will help before somebody changes something (no permission, no such bucket).
        `CorruptRecordError`: under this name it holds other bytes, which it leaves as they are.
        """

    async def aclose(self) -> None:
        """Lets go of connections. Nothing is flushed: what was acknowledged is there already."""
