"""How far an upload has come that is appended to: what its entry keeps, so that anybody may go on with it at any time.

    take         a token of one's own; who had one before and did not give it back can acknowledge no more
    append       PUT the part with the next number -> acknowledge it, if the token is still one's own
    give back    with the last part, or at the end
    complete     with exactly what was acknowledged

Each is a compare-and-swap of the entry. A process that is stopped may send a part whenever it wakes. It sends only the
number that was next when its token was taken from it. So whoever takes a token over leaves that number out for ever,
and what comes there late counts nowhere. A part that was acknowledged and is another one since is found by the *chain*:
a hash of number, size and ETag of each.

*Crash*: the token is not given back, which costs one number. Pure: the calls are in `assembling.py`.
docs/protocol/Appends.tla is the model of this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from changelog.base.errors import InvalidRequestError
from changelog.change import ChangeId
from tiered.services.capabilities import PART_NUMBER_MAX, Part

SKIPPED_MAX = 1000
"""How many numbers one upload may leave out. A compare-and-swap compares the whole entry, so that must be short."""


@dataclass(frozen=True, slots=True)
class Appending:
    """`part_bytes`: how large each part is but the last; the first append decides. `size` (bytes) and `parts`: how much
    was acknowledged. `next`: the number of the next part. `skipped`: numbers before it that do not count. `token`: who
    appends; None: nobody, and nobody is stopped in the middle of it.
    """

    part_bytes: int
    size: int = 0
    parts: int = 0
    next: int = 1
    chain: str = ""
    skipped: tuple[int, ...] = ()
    token: ChangeId | None = None

    @classmethod
    def adopted(cls, part_bytes: int, listed: Sequence[Part]) -> Appending:
        """Of an upload that older software may have appended to, or nobody. It counts what follows from part 1 on.

        If there is anything, the next number is left out: its process may be stopped, too.
        """
        adopted = cls(part_bytes)
        for part in leading(listed):
            adopted = adopted.with_part(part)
        return adopted if not listed else replace(adopted, next=adopted.next + 1, skipped=(adopted.next,))

    def taken(self, token: ChangeId) -> Appending:
        """`InvalidRequestError`: it was interrupted too often."""
        if self.token is None:
            return replace(self, token=token)
        if len(self.skipped) >= SKIPPED_MAX:
            raise InvalidRequestError(f"an upload can be interrupted {SKIPPED_MAX} times: finish this one if it is whole, or begin another")
        return replace(self, token=token, next=self.next + 1, skipped=(*self.skipped, self.next))

    def number(self) -> int:
        """Of the part to send. `InvalidRequestError`: there are no more."""
        if self.next > PART_NUMBER_MAX:
            raise InvalidRequestError(
                f"an upload has at most {PART_NUMBER_MAX} pieces, and this one keeps {self.part_bytes} bytes in each; begin another "
                "and append with a larger part_bytes"
            )
        return self.next

    def with_part(self, part: Part) -> Appending:
        chain = hashlib.sha256(f"{self.chain} {part.number} {part.size} {part.etag}".encode()).hexdigest()
        return replace(self, size=self.size + part.size, parts=self.parts + 1, next=part.number + 1, chain=chain)

    def acknowledged(self, name: str, listed: Sequence[Part]) -> Sequence[Part]:
        """Those of the listed parts that were acknowledged. `InvalidRequestError`: one of them is another one now."""
        found, again = [part for part in listed if part.number < self.next and part.number not in self.skipped], Appending(self.part_bytes)
        for part in found:
            again = again.with_part(part)
        if again.chain == self.chain:
            return found
        there = {part.number for part in found}
        missing = [number for number in range(1, self.next) if number not in there and number not in self.skipped]
        odd = [part.number for part in found[:-1] if part.size != self.part_bytes]
        which = f"part {missing[0]} is gone" if missing else f"part {odd[0]} is another one" if odd else "a part is another one"
        raise InvalidRequestError(
            f"what was appended to {name} has changed since: {which}. Nothing is stored of an upload whose parts somebody else "
            "uploads, too: abort it, and begin another"
        )

    def encode(self) -> Mapping[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> Appending | None:
        """`ValueError`, `TypeError`: it breaks the format."""
        if value is None:
            return None
        token, skipped = value["token"], value["skipped"]
        part_bytes, size, parts, following = numbers = tuple(value[key] for key in ("part_bytes", "size", "parts", "next"))
        if any(type(number) is not int or number < 0 for number in (*numbers, *skipped)) or type(value["chain"]) is not str:
            raise ValueError(f"what was appended is {value}")
        return cls(part_bytes, size, parts, following, value["chain"], tuple(skipped), None if token is None else ChangeId(token))


def leading(listed: Sequence[Part]) -> Sequence[Part]:
    """The parts that follow one another from the first on."""
    return [part for number, part in enumerate(listed, 1) if part.number == number]
