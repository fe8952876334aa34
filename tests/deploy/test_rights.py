"""The roles in `deploy/iam` grant what the calls in the code need, and nothing else.

The tables below say which right each call needs. A call that is new in the code is in no table, and fails the test.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.given.repository import ROOT
from tiered.provision import bucket, tables

READING_ROWS = {"bigtable.tables.readRows"}
WRITING_ROWS = {"bigtable.tables.mutateRows"}

BIGTABLE = {
    "ReadRows": READING_ROWS,
    "CheckAndMutateRow": WRITING_ROWS,
    "ReadModifyWriteRow": WRITING_ROWS,
    "MutateRow": WRITING_ROWS,
    "MutateRows": WRITING_ROWS,
    "SampleRowKeys": {"bigtable.tables.sampleRowKeys"},
    "PingAndWarm": {"bigtable.instances.ping"},
}
"""Data calls, as `changelog/bigtable` names them."""

OPENING = {"get_table": {"bigtable.tables.get"}, "get_app_profile": {"bigtable.appProfiles.get"}}
"""What opening a store asks of Bigtable's administration.

`instances.get` is not in a role: it only says more about a table that is missing.
"""

GCS = {
    "GET": {"storage.objects.get", "storage.objects.list"},
    "POST": {"storage.objects.create"},
    "PUT": set[str](),      # to a session, whose address is the right, or of a part
    "DELETE": {"storage.objects.delete"},
    "PATCH": {"storage.objects.update"},
}
"""HTTP methods, as `tiered/gcs` uses them."""

PARTS = {
    "POST": {"storage.multipartUploads.create", "storage.objects.create"},
    "PUT": {"storage.multipartUploads.create", "storage.objects.create"},
    "GET": {"storage.multipartUploads.list", "storage.multipartUploads.listParts"},
    "DELETE": {"storage.multipartUploads.abort"},
}
"""HTTP methods of the XML API, as `tiered/gcs/parts.py` uses them."""

RESTORING = {"storage.objects.restore"}
"""The POST that `restore_url` of `tiered/gcs` makes needs this, too."""

ALWAYS = BIGTABLE["PingAndWarm"] | READING_ROWS | OPENING["get_table"] | OPENING["get_app_profile"]

WANTED = {
    "rows-writer": ALWAYS | WRITING_ROWS,
    "rows-reader": ALWAYS,
    "rows-auditor": ALWAYS | BIGTABLE["SampleRowKeys"],
    "blobs-writer": set[str]().union(*GCS.values(), *PARTS.values()),
    "blobs-reader": GCS["GET"],
    # Opening a store lists, and so does a 404 that is not clear. /readyz looks at a blob that is not there.
    "blobs-sweeper": GCS["DELETE"] | GCS["GET"] | PARTS["DELETE"] | {"storage.multipartUploads.list"},
    # It adds files, and compares one that is there already with what it delivers. It never changes or deletes one.
    "feed-writer": GCS["POST"] | GCS["GET"],
    "blobs-restorer": GCS["POST"] | GCS["DELETE"] | GCS["GET"] | RESTORING,
}


def granted(role: str) -> list[str]:
    found: list[str] = yaml.safe_load((ROOT / f"deploy/iam/{role}.yaml").read_text())["includedPermissions"]
    return found


@pytest.mark.parametrize("role", WANTED)
def test_a_role_grants_what_is_needed_and_nothing_else(role: str) -> None:
    assert granted(role) == sorted(WANTED[role])


def test_every_role_is_tested_and_can_be_created() -> None:
    roles = sorted((ROOT / "deploy/iam").glob("*.yaml"))
    assert [path.stem for path in roles] == sorted(WANTED)
    for path in roles:
        role = yaml.safe_load(path.read_text())
        assert set(role) == {"title", "description", "stage", "includedPermissions"} and len(role["title"]) <= 100
        assert len(role["description"]) <= 256 and role["stage"] == "GA"


def test_every_call_to_bigtable_is_known() -> None:
    text = "\n".join(path.read_text() for folder in ("changelog", "tiered") for path in (ROOT / folder / "bigtable").glob("*.py"))
    assert set(re.findall(r'_(?:unary|stream)\(channel, "(\w+)"', text)) | set(re.findall(r"\{SERVICE\}(\w+)", text)) == set(BIGTABLE)


@pytest.mark.parametrize(
    ("files", "known"),
    [("tiered/gcs/*.py", set(GCS)), ("tiered/gcs/parts.py", set(PARTS)), ("tiered/gcs/bucket_files.py", {"GET", "POST"})],
    ids=["of GCS", "of an upload in parts", "of the writer of the feed, whose role allows no other"],
)
def test_every_method_is_known(files: str, known: set[str]) -> None:
    text = "\n".join(path.read_text() for path in ROOT.glob(files))
    assert set(re.findall(r'"(GET|POST|PUT|DELETE|PATCH|HEAD)"', text)) == known


def test_opening_asks_what_the_roles_allow() -> None:
    text = Path(tables.__file__).read_text()
    asked = set(re.findall(r"admin\.(?:tables|instances)\.(get_\w+|list_\w+)\(", text))
    assert asked - {"get_instance", "list_clusters", "list_tables"} == set(OPENING)  # trials are listed by whoever may make them


def test_what_check_demands_is_in_the_writers_roles() -> None:
    assert set(tables.PERMISSIONS) <= set(granted("rows-writer")) and set(bucket.PERMISSIONS) <= set(granted("blobs-writer"))


def test_who_recovers_may_not_make_or_change_blobs_and_who_audits_may_change_nothing() -> None:
    assert not {"storage.objects.create", "storage.objects.update"} & set(granted("blobs-sweeper"))
    assert not {"storage.objects.delete", "bigtable.tables.mutateRows"} & {*granted("rows-auditor"), *granted("blobs-reader")}


def test_only_who_restores_may_restore() -> None:
    assert [role for role in WANTED if set(granted(role)) & RESTORING] == ["blobs-restorer"]
