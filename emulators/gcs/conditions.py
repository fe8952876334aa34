"""Preconditions of the GCS emulator: by generation in the query, by tag in the headers of a read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from multidict import MultiMapping

from emulators.gcs.answers import GcsError
from emulators.gcs.wire import WireRequest, parse_int

FAILED = "At least one of the pre-conditions you specified did not hold."
MATCH = "x-goog-if-"


class Versioned(Protocol):
    @property
    def generation(self) -> int: ...

    @property
    def metageneration(self) -> int: ...


def check_preconditions(query: Mapping[str, str], current: Versioned | None, *, reading: bool = False) -> None:
    """Raises `GcsError` if a precondition does not hold. Generation 0 stands for absence.

    A failed *not* is 304 for reads. Every other failure is 412.
    """
    facts = {
        "Generation": current.generation if current else 0,
        "Metageneration": current.metageneration if current else 0,
    }
    for fact, actual in facts.items():
        wanted, unwanted = parse_int(query, f"if{fact}Match"), parse_int(query, f"if{fact}NotMatch")
        if wanted is not None and wanted != actual:
            raise GcsError(412, FAILED)
        if unwanted is not None and unwanted == actual:
            raise GcsError(304 if reading else 412, FAILED)


def check_tags(headers: MultiMapping[str], tag: str) -> None:
    """Raises `GcsError` 412 or 304 if `If-Match` or `If-None-Match` does not hold."""
    if "if-match" in headers and not _names(headers["if-match"], tag):
        raise GcsError(412, FAILED)
    if "if-none-match" in headers and _names(headers["if-none-match"], tag):
        raise GcsError(304, FAILED, headers={"ETag": tag})


def _names(told: str, tag: str) -> bool:
    tags = [each.strip().removeprefix("W/").strip('"') for each in told.split(",")]
    return "*" in tags or tag.strip('"') in tags


def of_headers(call: WireRequest) -> dict[str, str]:
    """Returns the preconditions of a call of the XML API by the JSON API's names: ifGenerationMatch, and its like."""
    asked = {key.lower(): value for key, value in call.headers.items() if key.lower().startswith(MATCH)}
    named = {"if" + key.removeprefix(MATCH).title().replace("-", ""): value for key, value in asked.items()}
    return {key: value for key, value in named.items() if "eneration" in key}


def of_source(query: Mapping[str, str]) -> dict[str, str]:
    """Returns the preconditions and the generation of a copy's source, as those of a read are called."""
    named = {key: value for key, value in query.items() if key.startswith("ifSource")}
    wanted = {key.replace("ifSource", "if", 1): value for key, value in named.items()}
    return {**wanted, **({"generation": query["sourceGeneration"]} if "sourceGeneration" in query else {})}
