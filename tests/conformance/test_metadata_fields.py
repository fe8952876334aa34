"""Each field of metadata is wherever somebody has to write it by hand. A failure lists what is still to do."""

from __future__ import annotations

import json
import re

import pytest

from tests.conformance import reader, rules
from tests.conformance.golden import FORMS
from tests.given.repository import ROOT
from tiered.metadata import FIELDS, Metadata

PAGE = (ROOT / "docs" / "format.md").read_text("utf-8")
SECTION = PAGE.partition("\n## Metadata\n")[2].partition("\n## ")[0]
TOLD = [form["says"]["metadata"] for form in FORMS.values() if isinstance(form["says"], dict)]
BLOBS = [blob.keys() | blob.get("metadata", {}).keys() for form in FORMS.values() for blob in form.get("blobs", ())]
KEYS = {row.key or name: (name, row) for name, row in FIELDS.items()}


@pytest.mark.parametrize("key", KEYS)
def test_a_field_is_on_the_page_in_the_rules_in_the_reader_and_in_a_golden_form(key: str) -> None:
    name, row = KEYS[key]
    header = row.header and row.header[0].lower() + row.header[1:].replace("-", "")
    beside = header or row.entry
    is_written = {
        "docs/format.md, the example of metadata": f'"{key}":' in SECTION,
        "docs/format.md, what is beside a blob": not beside or re.search(rf"\b{beside}\b", PAGE),
        "tiered/metadata.py, the docstring of Metadata": f"`{name}`" in (Metadata.__doc__ or ""),
        "rules.py, METADATA": key in rules.METADATA,
        "rules.py, SENT_AS": not header or rules.SENT_AS.get(header) == row.header,
        "rules.py, KNOWN_THERE: Objectstore fails on any other entry": not row.entry or row.entry in rules.KNOWN_THERE,
        "reader.py, KNOWN": reader.KNOWN.get(key) is row.kind,
        "golden.json, the metadata of a form": any(key in told for told in TOLD),
        "golden.json, a blob of a form": not beside or any(beside in blob for blob in BLOBS),
    }
    missing = [place for place, is_there in is_written.items() if not is_there]
    assert not missing, f"still to be written of {key}: {'; '.join(missing)}"


def test_the_page_the_rules_and_the_store_have_the_keys_in_one_order() -> None:
    example = json.loads("".join(SECTION.partition('{"expiration_policy"')[1:]).partition("```")[0])
    assert [*example] == [*rules.METADATA] == [*KEYS, "custom"]
