"""A kind of somebody else's package: found through its entry point, and used by the library and by every command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.given.command_line import Command
from tiered import ConfigurationError, ObjectId, Settings, open_storage
from tiered.kinds.chosen import address_of, blobs_kind, inspect, rows_kind
from tiered.metadata import Metadata

pytestmark = pytest.mark.anyio

PACKAGE = '''
"""Rows in a SQLite file and blobs in a directory, each wherever its options say."""

from contextlib import asynccontextmanager
from pathlib import Path

from changelog.sqlite.log import Database, SqliteChangeLog
from tiered import ConfigurationError
from tiered.embedded.blobs import FileBlobs
from tiered.embedded.rows import SqliteRows
from tiered.kinds.kind import OpenRows
from tiered.provision.findings import Notice, NoticeKind


class Rows:
    def _file(self, settings):
        if set(settings.rows.options) != {"file"}:
            raise ConfigurationError("rows.options needs file, and nothing else")
        return Path(settings.rows.options["file"])

    def address(self, settings):
        return "acme:rows"

    def inputs(self, settings):
        return {"table": str(self._file(settings))}

    @asynccontextmanager
    async def open(self, settings, runtime, *, writes, verify):
        async with Database.open(self._file(settings), runtime) as database:
            yield OpenRows(SqliteRows(database, runtime), SqliteChangeLog(database, runtime), "acme")

    async def owner(self, settings, runtime):
        return "acme"

    async def inspect(self, settings, runtime):
        return [Notice(NoticeKind.OK, f"{self._file(settings)} holds rows")]

    async def provision(self, settings, runtime, wanted):
        return [Notice(NoticeKind.PLANNED if wanted.dry_run else NoticeKind.DONE, "rows can be written")]


class Blobs:
    def _directory(self, settings):
        return Path(settings.blobs.options["directory"])

    def address(self, settings):
        return "acme:blobs"

    def inputs(self, settings):
        return {"bucket": str(self._directory(settings))}

    def place(self, settings):
        return None

    @asynccontextmanager
    async def open(self, settings, runtime, rows, *, writes, verify):
        assert rows.owner == "acme"
        yield await FileBlobs.open_directory(self._directory(settings), runtime)

    async def inspect(self, settings, runtime, owner):
        return [Notice(NoticeKind.OK, f"{self._directory(settings)} is of {owner}")]

    async def provision(self, settings, runtime, owner, wanted):
        return [Notice(NoticeKind.PLANNED if wanted.dry_run else NoticeKind.DONE, f"{owner} owns the blobs")]


ROWS, BLOBS = Rows(), Blobs()
HALF = object()
'''
ENTRY_POINTS = """[tiered.kinds]
acme = acme_tiers:ROWS
acme-blobs = acme_tiers:BLOBS
half = acme_tiers:HALF
broken = acme_tiers.nothing:KIND
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which the package is installed as pip does it."""
    site = tmp_path / "site"
    information = site / "acme_tiers-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "acme_tiers.py").write_text(PACKAGE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tiers\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(site)
    return site


def values(where: Path, **more: Any) -> dict[str, Any]:
    return {
        "rows": {"kind": "acme", "options": {"file": str(where / "rows.db")}},
        "blobs": {"kind": "acme-blobs", "options": {"directory": str(where / "files")}},
        "changelog": "acme", "inline_bytes_max": 100,
    } | more  # fmt: skip


async def test_a_store_is_opened_in_the_kinds_of_another_package(installed: Path, tmp_path: Path) -> None:
    settings = Settings(**values(tmp_path))
    (tmp_path / "files").mkdir()
    cat = ObjectId.create("photos", "cat")
    async with open_storage(settings) as store:
        await store.put(cat, b"x" * 1000, Metadata(content_type="image/png"))
        found = await store.get(cat)
        assert found is not None and await found.read() == b"x" * 1000
    assert [file for file in (tmp_path / "files").rglob("*") if file.is_file()] and (tmp_path / "rows.db").is_file()
    assert address_of(settings) == "acme:rows+acme:blobs"
    assert [each.sentence for each in await inspect(settings)] == [f"{tmp_path}/rows.db holds rows", f"{tmp_path}/files is of acme"]


@pytest.mark.slow
def test_every_command_works_in_the_kinds_of_another_package(installed: Path, tmp_path: Path) -> None:
    tiered = Command(tmp_path, store=False)
    (tmp_path / "files").mkdir()
    (tmp_path / "t.yaml").write_text(json.dumps(values(tmp_path)))
    (tmp_path / "cat").write_bytes(b"x" * 1000)
    tiered.environment |= {"PYTHONPATH": str(installed)}

    def run(*words: str, code: int = 0) -> str:
        return tiered("-c", str(tmp_path / "t.yaml"), *words, code=code)

    assert "acme owns the blobs" in run("provision")
    assert "rows.db holds rows" in run("check")
    run("put", "photos/objects/cat", str(tmp_path / "cat"))
    assert "photos/objects/cat" in run("ls", "photos")
    run("recover", "--once")
    status = json.loads(run("status", "--json"))
    assert status["store"] | {"answers": 1} == {
        "kind": "acme+acme-blobs", "name": "acme:rows+acme:blobs", "durable": True, "answers": 1,
    }  # fmt: skip
    run("audit", "run", "--engine", "local", "--to", str(tmp_path / "run"))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["inputs"] == {"bucket": f"{tmp_path}/files", "changelog": "acme", "table": f"{tmp_path}/rows.db"}
    run("rm", "photos/objects/cat")
    assert not [file for file in (tmp_path / "files").rglob("*") if file.is_file()]


@pytest.mark.parametrize(("sections", "sentence"), [
    ({"rows": {"kind": "other"}}, "rows.kind is 'other', and no installed package has a kind of this name: install it; there are acme,"),
    ({"rows": {"kind": "acme-blobs"}}, "the kind acme-blobs has no 'owner', so it cannot hold rows"),
    ({"rows": {"kind": "half"}}, "the kind half has no 'address', so it cannot hold rows"),
    ({"rows": {"kind": "broken"}}, "the kind broken of rows.kind cannot be loaded (ModuleNotFoundError: No module named"),
    ({"blobs": {"kind": "other"}}, "blobs.kind is 'other', and no installed package"),
    ({"rows": {"kind": "acme", "options": {"files": "x"}}}, "rows.options needs file"),
])  # fmt: skip
async def test_a_kind_that_cannot_be_used_is_named(
    installed: Path, tmp_path: Path, sections: Mapping[str, Any], sentence: str
) -> None:
    changelog = sections.get("rows", {}).get("kind", "acme")
    with pytest.raises(ConfigurationError) as raised:
        async with open_storage(Settings(**values(tmp_path, changelog=changelog, **sections))):
            pass
    assert sentence in str(raised.value)


def test_a_foreign_kind_goes_with_one_of_ours_and_never_takes_its_name(installed: Path, tmp_path: Path) -> None:
    ours = Settings(**{**values(tmp_path), "blobs": None}, gcs={"bucket": "blobs"})
    assert (ours.rows_kind, ours.blobs_kind, ours.embedded) == ("acme", "gcs", False)
    assert address_of(ours) == "acme:rows+gcs:blobs"
    assert type(rows_kind(ours)).__module__ == "acme_tiers" and type(blobs_kind(ours)).__module__ == "tiered.kinds.gcs"
    for section, kind in (("rows", "bigtable"), ("blobs", "gcs"), ("rows", "directory")):
        with pytest.raises(ConfigurationError, match=f"{section}.kind is '?{kind}"):
            Settings(**values(tmp_path, **{section: {"kind": kind}}))


def test_options_are_never_shown(tmp_path: Path) -> None:
    settings = Settings(**values(tmp_path, rows={"kind": "acme", "options": {"file": "x", "password": "hunter2"}}))
    assert settings.shown()["rows.options"]["value"] == ["file", "password"]
    assert "hunter2" not in repr(settings) and "hunter2" not in json.dumps(settings.shown())
    with pytest.raises(ConfigurationError) as raised:
        Settings(**values(tmp_path, rows={"kind": "acme", "options": "hunter2"}))
    assert "hunter2" not in str(raised.value) and "rows.options" in str(raised.value)
