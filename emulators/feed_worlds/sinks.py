"""`WorldSink`, a sink that is a service in a world: requests to it may be lost, late, repeated and reordered."""

from __future__ import annotations

from changelog.base.runtime import Runtime
from emulators.world.runtime import Simulated
from recovery.feed.sinks.sink import Parcel


class WorldSink(Simulated):
    """Keeps what arrives, in the order of arrival, also what comes twice. `held`: the same by folder and name."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        super().__init__(runtime)
        self.name = name
        self.arrived: list[Parcel] = []
        self.held: dict[tuple[int, int], Parcel] = {}

    async def deliver(self, parcel: Parcel) -> None:
        await self._travel()
        self.arrived.append(parcel)
        self.held.setdefault((parcel.generation, parcel.time), parcel)
        self._took_effect("sink.deliver", self.name)

    async def aclose(self) -> None:
        return None
