"""`WorldSink`, a sink that is a service in a world: requests to it may be lost, late, repeated and reordered.

What arrives may be of another code's classes (`emulators.world.code`). It is kept in those of this one.
"""

from __future__ import annotations

from dataclasses import fields

from changelog.base.runtime import Runtime
from emulators.world.runtime import SimulatedService
from recovery.feed.sinks.sink import Owner, Segment, SinkContent


class WorldSink(SimulatedService):
    """Keeps what arrives, in the order of arrival, also what comes twice. `held`: the same by folder and name."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        super().__init__(runtime)
        self.name = name
        self.arrived: list[Segment] = []
        self.owner: Owner | None = None
        self.held: dict[tuple[int, int], Segment] = {}

    async def deliver(self, segment: Segment) -> None:
        await self._travel()
        segment = Segment(**{each.name: getattr(segment, each.name) for each in fields(Segment)})
        self.arrived.append(segment)
        self.held.setdefault((segment.generation, segment.time), segment)
        self._took_effect("sink.deliver", self.name)

    async def look(self, generation: int, since: int) -> SinkContent:
        await self._travel()
        times = tuple(sorted(time for number, time in self.held if number == generation and time >= since))
        return SinkContent(self.owner, max((number for number, _ in self.held), default=None), times)

    async def claim(self, owner: Owner) -> bool:
        await self._travel()
        self.owner = self.owner or Owner(owner.feed, owner.store)
        return True

    async def aclose(self) -> None:
        return None
