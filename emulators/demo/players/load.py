"""Which operations the demo's writers do. The seed and an operation's id decide what it does, so it can be repeated.

    id    w{writer}.{incarnation}-{task}-{number}      the process that began it, and which of its operations it is

How many operations a process does before it is killed depends on the machine. No two payloads are alike, so the bytes
alone tell which operation wrote them. The metadata contain the operation's id as well (`operation`); both must agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from emulators.demo.players.journal import OperationKind
from tiered.object_id import ObjectId

INLINE_BYTES_MAX = 16 * 1024
SMALL_BYTES = (10, 4 * 1024)
LARGE_BYTES = (INLINE_BYTES_MAX + 1, 16 * INLINE_BYTES_MAX)

EXPIRES_EACH = 3
"""Of so many operations, one that is a put gives its object a deadline."""

_MIX = ((0.25, "small put"), (0.20, "large put"), (0.20, "streamed put"), (0.10, "delete"), (0.25, "get"))
_OVER_READ = 0.5
"""How often a read is followed by a write that is only to replace what was read."""
_KEYS = ("file-{}.bin", "reports/2031/q{}/résumé größe.pdf", "写真/{}/桜.jpg", "with space & %2F+{}", "deep/" + "nested/" * 30 + "{}")


@dataclass(frozen=True, slots=True)
class LoadStep:
    """One operation to do. `payload` is empty unless it is a put. `streamed`: `put` is not told its size in advance.

    `expires`: the object does, long after the run; so its row and its blob have deadlines. `over_read`: only over what
    the task has read last of the object.
    """

    id: str
    kind: OperationKind
    object_id: ObjectId
    payload: bytes
    streamed: bool = False
    expires: bool = False
    over_read: bool = False


def object_ids(count: int) -> list[ObjectId]:
    """Returns the objects that all writers share, in two usecases, with and without scopes."""
    scopes = (("org", "17"), ("project", "42"))
    return [
        ObjectId.create("attachments" if number % 2 else "avatars", _KEYS[number % len(_KEYS)].format(number), scopes if number % 2 else ())
        for number in range(count)
    ]


def steps(seed: int, process: str, task: int, objects: list[ObjectId]) -> Iterator[LoadStep]:
    """Yields what one task of one process does, without an end."""
    chance = Random(f"{seed} {process} {task}")
    number, over_read = 0, False
    while True:
        number += 1
        operation = f"{process}-{task}-{number}"
        if not over_read:
            # Squared, so that many tasks use the same few objects, and others are left alone for a while.
            object_id = objects[int(len(objects) * chance.random() ** 2)]
        mix = _MIX[:-1] if over_read else _MIX
        (what,) = chance.choices([name for _, name in mix], [weight for weight, _ in mix])
        match what:
            case "small put" | "large put" | "streamed put":
                size = chance.randint(*(SMALL_BYTES if what == "small put" else LARGE_BYTES))
                put, streamed, expires = payload(seed, operation, size), what == "streamed put", number % EXPIRES_EACH == 0
                yield LoadStep(operation, OperationKind.PUT, object_id, put, streamed, expires, over_read)
            case _:
                yield LoadStep(operation, OperationKind(what), object_id, b"", over_read=over_read)
        over_read = what == "get" and chance.random() < _OVER_READ


def payload(seed: int, operation: str, size: int) -> bytes:
    return hashlib.shake_128(f"{seed} {operation}".encode()).digest(size)


def digest(payload: bytes) -> str:
    return hashlib.blake2b(payload, digest_size=16).hexdigest()
