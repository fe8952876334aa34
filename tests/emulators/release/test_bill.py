"""A bill of materials that leaves something out, or says something false, is found. A release makes the real one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from emulators.release.bill import EXTRA, WITHOUT, completed, here, wrong

DIGEST = "a" * 64
THERE = {"anyio": "4.16.0", "pyyaml": "6.0.3", "google-crc32c": "1.9.0", "typing-extensions": "4.16.0"}
BROUGHT = {
    WITHOUT: {"anyio": "4.16.0", "pyyaml": "6.0.3", "typing-extensions": "4.16.0"},
    "gcp": THERE,
    "s3": THERE,
}
AS_DRAWN: dict[str, Any] = {
    "metadata": {"component": {"bom-ref": "root", "name": "tiered"}},
    "components": [
        {"bom-ref": f"{name}=={version}", "name": name, "version": version}
        for name, version in (("anyio", "4.16.0"), ("PyYAML", "6.0.3"), ("google-crc32c", "1.9.0"), ("typing_extensions", "4.16.0"))
    ],
    "dependencies": [
        {"ref": "root", "dependsOn": ["PyYAML==6.0.3", "anyio==4.16.0", "google-crc32c==1.9.0", "typing_extensions==4.16.0"]},
        {"ref": "anyio==4.16.0", "dependsOn": ["typing_extensions==4.16.0"]},
    ],
}
DIRECT = {"anyio", "pyyaml", "google-crc32c"}


@pytest.fixture
def bill() -> dict[str, Any]:
    return completed(copy.deepcopy(AS_DRAWN), BROUGHT, DIRECT, DIGEST)


def test_a_bill_says_what_comes_with_which_extra_of_which_wheel_and_where(bill: dict[str, Any]) -> None:
    assert wrong(bill, THERE, BROUGHT, DIGEST) == []
    by = {each["name"]: [one["value"] for one in each["properties"] if one["name"] == EXTRA] for each in bill["components"]}
    assert by["google-crc32c"] == ["gcp", "s3"] and by["PyYAML"] == [WITHOUT, "gcp", "s3"]
    assert bill["metadata"]["component"]["properties"] == [{"name": "tiered:resolved-on", "value": here()}]
    assert bill["dependencies"][0]["dependsOn"] == ["PyYAML==6.0.3", "anyio==4.16.0", "google-crc32c==1.9.0"]
    assert bill["dependencies"][1] == AS_DRAWN["dependencies"][1]


def removed(bill: dict[str, Any]) -> None:
    del bill["components"][2]


def added(bill: dict[str, Any]) -> None:
    bill["components"].append({"name": "more", "version": "1"})


def twice(bill: dict[str, Any]) -> None:
    bill["components"].append(bill["components"][0])


def of_another_version(bill: dict[str, Any]) -> None:
    bill["components"][0]["version"] = "4.15.0"


def of_another_extra(bill: dict[str, Any]) -> None:
    bill["components"][2]["properties"].pop()


def of_another_wheel(bill: dict[str, Any]) -> None:
    bill["metadata"]["component"]["hashes"][0]["content"] = "b" * 64


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (removed, "google-crc32c is absent in the bill, and 1.9.0 where the wheel is installed"),
        (added, "more is 1 in the bill, and absent where the wheel is installed"),
        (twice, "anyio is in the bill twice"),
        (of_another_version, "anyio is 4.15.0 in the bill, and 4.16.0 where the wheel is installed"),
        (of_another_extra, "google-crc32c is said to come with ['gcp'], and comes with ['gcp', 's3']"),
        (of_another_wheel, "the bill is not of this wheel"),
    ],
)
def test_a_bill_with_a_planted_fault_is_refused(bill: dict[str, Any], plant: Callable[[dict[str, Any]], None], told: str) -> None:
    plant(bill)
    assert told in wrong(bill, THERE, BROUGHT, DIGEST)


def test_what_was_installed_into_the_environment_besides_is_told(bill: dict[str, Any]) -> None:
    bill["components"].append({"name": "more", "version": "1"})
    assert wrong(bill, THERE | {"more": "1"}, BROUGHT, DIGEST) == ["more is in the bill, and no extra brings it"]


@pytest.mark.parametrize(
    ("extra", "name", "version", "told"),
    [
        ("kafka", "confluent-kafka", "2.16.1", "confluent-kafka 2.16.1 comes with 'kafka', and the bill has none"),
        ("s3", "anyio", "5.0.0", "anyio 5.0.0 comes with 's3', and the bill has 4.16.0"),
    ],
)
def test_what_an_extra_brings_and_the_whole_environment_has_not_is_told(
    bill: dict[str, Any], extra: str, name: str, version: str, told: str
) -> None:
    brought = {**BROUGHT, extra: {**BROUGHT.get(extra, {}), name: version}}
    assert told in wrong(bill, THERE, brought, DIGEST)
