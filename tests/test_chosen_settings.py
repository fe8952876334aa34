"""What an operator chooses is shown to operators: each such setting is in an example or in the table of production.md.

What is for tuning is in neither. A setting file of deploy/ that sets it, or a row of the table, would say otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.given.repository import ROOT
from tiered import Settings
from tiered.settings import BIGTABLE_EMULATOR, GCS_EMULATOR

SECTIONS = {"bigtable", "gcs", "postgres", "s3"}
STORES = [
    set(each.shown()) - SECTIONS  # a section that is not set is shown as one setting
    for each in (
        Settings(bigtable={"project": "my-project", "instance": "main"}, gcs={"bucket": "blobs"}),
        Settings(postgres={"dsn": "postgresql://host/database"}, s3={"bucket": "blobs"}),
    )
]
KEYS = set[str]().union(*STORES)
FILES = [
    path
    for folder in ("examples", "deploy")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix != ".pyc"
]
GOOGLES = {BIGTABLE_EMULATOR: "bigtable.emulator_host", GCS_EMULATOR: "gcs.endpoint"}


def set_by_a_file(value: Any) -> Iterator[str]:
    """The settings of a YAML value, wherever settings stand in it: a ConfigMap holds a settings file as text."""
    if isinstance(value, str) and "\n" in value:
        try:
            yield from set_by_a_file(yaml.safe_load(value))
        except yaml.YAMLError:
            return
    elif isinstance(value, list):
        for each in value:
            yield from set_by_a_file(each)
    elif isinstance(value, dict) and value.keys() <= Settings.model_fields.keys():
        for name, inner in value.items():
            yield from (f"{name}.{key}" for key in inner) if isinstance(inner, dict) else (name,)
    elif isinstance(value, dict):
        for each in value.values():
            yield from set_by_a_file(each)


def in_examples() -> set[str]:
    found: set[str] = set()
    for path in FILES:
        text = path.read_text("utf-8")
        if path.suffix == ".yaml":
            for document in yaml.safe_load_all(text):
                found |= set(set_by_a_file(document))
        found |= {name.lower().replace("__", ".") for name in re.findall(r"TIERED_([A-Z0-9_]+__[A-Z_]+)", text)}
        found |= {key for variable, key in GOOGLES.items() if variable in text}
    return found


def in_the_table() -> set[str]:
    """What the first column of the first table of "Numbers to choose" names."""
    section = (ROOT / "docs/production.md").read_text("utf-8").partition("## Numbers to choose")[2].strip().partition("\n\n")[0]
    return {key for line in section.splitlines() for key in re.findall(r"`([a-z0-9_.]+)`", line.split("|")[1])}


def test_what_is_read_from_the_examples_are_settings() -> None:
    assert {"gcs.bucket", "daemon.http_port", "feed.to", "directory", "bigtable.emulator_host"} <= in_examples() <= KEYS
    assert in_the_table() <= KEYS


def test_each_setting_that_an_operator_chooses_is_in_an_example_or_in_the_table() -> None:
    assert KEYS - Settings.tuning() - in_examples() - in_the_table() == set()


def test_no_setting_for_tuning_is_in_an_example_or_in_the_table() -> None:
    assert Settings.tuning() & (in_examples() | in_the_table()) == set()


def test_the_schema_says_what_is_for_tuning() -> None:
    schema = Settings.model_json_schema()["$defs"]
    assert schema["LeaseSettings"]["properties"]["expiry_s"]["tuning"] is True
    assert "tuning" not in schema["GcsSettings"]["properties"]["bucket"]
    assert all(len(keys - Settings.tuning()) <= 30 for keys in STORES)
