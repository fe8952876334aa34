"""The benchmarks run, tiny: so that they cannot rot."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from benchmarks import embedded


def test_the_embedded_benchmark_shows_every_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(embedded, "ROUNDS", 2)
    anyio.run(embedded.measure, tmp_path, 0.001).show()
    shown = capsys.readouterr().out
    assert shown.count("1 KiB") == 2
    assert shown.count("2 MiB") == 4
