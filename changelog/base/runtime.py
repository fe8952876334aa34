"""The one door for time and chance: clocks, sleep, ids and randomness.

All other code receives a `Runtime` and takes these from it. The linter forbids the system's own elsewhere. So the same
code runs under a simulated clock, and one seed always gives the same history (SlateDB and FoundationDB do the same).
Deadlines may also be anyio's own (`move_on_after`). They follow the event loop's clock, and the simulation replaces
that clock, too.
"""

from __future__ import annotations

import time
from random import Random, SystemRandom
from typing import Protocol
from uuid import UUID

import anyio


class Runtime(Protocol):
    """Clocks, sleep, ids and randomness. Only `wall_ns` may jump. Safety depends on none of them."""

    random: Random

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back. Waits use it."""

    def boot_time(self) -> float:
        """Seconds since boot, including the time in which the machine was suspended; never goes back.

        Leases and ages use it.
        """

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, as this machine believes."""

    async def sleep(self, seconds: float) -> None:
        """Suspends the task for `seconds`. It is a checkpoint even for 0."""


class SystemRuntime:
    """The machine's own clocks and randomness."""

    def __init__(self) -> None:
        self.random: Random = SystemRandom()

    def monotonic(self) -> float:
        return time.monotonic()

    def boot_time(self) -> float:
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime(clock)

    def wall_ns(self) -> int:
        return time.time_ns()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


def uuid7(runtime: Runtime) -> UUID:
    """A version 7 UUID (RFC 9562): 48 bits of Unix milliseconds, then 74 random bits."""
    return UUID(int=uuid7_number(runtime))


def uuid7_number(runtime: Runtime) -> int:
    """The 128 bits of a new `uuid7`."""
    milliseconds = (runtime.wall_ns() // 1_000_000) & ((1 << 48) - 1)
    chance = runtime.random.getrandbits(74)
    return milliseconds << 80 | 0x7 << 76 | (chance >> 62) << 64 | 0b10 << 62 | chance & ((1 << 62) - 1)


def instance_name(runtime: Runtime, role: str) -> str:
    """A name for this process that no other process will ever have, such as `store-3f9c…`."""
    return f"{role}-{runtime.random.getrandbits(64):016x}"
