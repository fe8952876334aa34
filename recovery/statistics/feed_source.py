"""stub"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    messages_received: int = 0
    updates_staged: int = 0
    updates_committed: int = 0
class FeedSource:
    def __init__(self, *a: object) -> None: ...
    async def report(self, *, left: bool = False) -> None: ...
    async def run(self) -> None: ...
