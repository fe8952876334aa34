"""What a machine lacks is named, and what it has is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulators import lacking


def test_a_machine_without_programs_lacks_each_and_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "HOME", "XDG_CACHE_HOME", "POSTGRES_BIN"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("JAVA_HOME", "CHROMIUM", "BIGTABLE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(lacking, "find_spec", lambda name: None)
    monkeypatch.setattr("emulators.go.which", lambda name: None)
    monkeypatch.setattr(lacking, "which", lambda name: None)

    told = lacking.lacking()

    assert [each.partition(":")[0] for each in told][:3] == ["no Go", "no Bigtable emulator", "no fake-gcs-server"]
    assert {"no Java", "no chromium", "no promtool", "no PostgreSQL"} <= {each.partition(":")[0] for each in told}
    assert all(": " in each and "; " in each for each in told)
