"""A model that remembers what happened in it."""

from __future__ import annotations

from collections.abc import Iterator

from docs.protocol.search import Checked


class HeardScenario:
    """A scenario, and the labels of all steps that were taken in it."""

    def __init__(self, searched: Checked) -> None:
        self.labels: set[str] = set()
        self._searched = searched
        self.first, self.verdict = searched.first, searched.verdict

    def steps(self, state: object) -> Iterator[tuple[str, object]]:
        for label, after in self._searched.steps(state):
            self.labels.add(label)
            yield label, after
