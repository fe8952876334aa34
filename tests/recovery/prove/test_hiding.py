"""Nothing that names something of the user's is in a report, and nothing that this program says is taken out of it.

`planted` puts a value of its own into each setting of each section that takes text. A service may repeat any of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import BaseModel, SecretStr

from recovery.prove.hiding import hidden
from recovery.prove.page import page_of
from recovery.prove.probes.entries import ENTRIES
from recovery.prove.probes.rows import ROWS
from recovery.prove.report import Line, ProveReport, text_of
from tiered.provision.probes import Result
from tiered.provision.s3_probes import PROBES
from tiered.settings import Settings
from tiered.settings import sections as known

OWN_SENTENCES = [
    sentence for table in (ROWS, ENTRIES, PROBES) for probe in table for sentence in (probe.promise, probe.cost, probe.cure)
]
PASSWORD = "zq%40rows:/zq b\\ad\"x'y"
DSN = f"postgresql://zquser:{quote(PASSWORD, safe='')}@[fe80::7a1]:15432,zqdb.eu.zqcorp.example:25432/zqbase?sslmode=require"


def planted() -> list[Settings]:
    """All sections, each with values that nobody else has; the sections that exclude one another are in several."""
    postgres: dict[str, Any] = {"dsn": DSN, "schema_name": "zqschema"}
    other = {"kind": "zqkind", "options": {"zqoption": "zqvalue one", "list": ["zqitem"], "in": {"zqinner": "zq/path"}}}
    shared: dict[str, Any] = {
        "instance": "zqinstance", "usecases": {"zqphotos": {"closed": True, "per_scope": {"zqorg": {"requests_per_s": 5}}}},
        "feed": {"enabled": True, "to": ["/var/zqfeed", "gs://zqbucket/zqfeeds"]}, "daemon": {"http_host": "zqhost.zqcorp.example"},
        "links": {
            "base_url": "https://zqfiles.example.com/zqlinks", "origins": "https://zqapp.example.com",
            "keys": "zqJx81uWqLmBv5yTtR0sKdPfGhAzNcXe",
        },
    }  # fmt: skip
    s3 = {"bucket": "zqbucket", "prefix": "zqprefix/in/", "endpoint": "https://zqs3.zqcorp.example:9443", "region": "zq-region"}
    gcs = {"bucket": "zq-blobs", "prefix": "zqpart/", "endpoint": "http://zqgcs.internal:4443"}
    bigtable = {
        "project": "zqproject-17", "instance": "zqtables", "table": "zqrows", "changelog_table": "zqlog", "app_profile": "zqprofile",
        "emulator_host": "zqemulator:8086",
    }  # fmt: skip
    return [
        Settings.model_validate(each) for each in (
            {"postgres": postgres, "s3": s3, **shared}, {"bigtable": bigtable, "gcs": gcs}, {"rows": other, "blobs": other},
            {"directory": "/srv/zqstore/in", "daemon": {"audit_reports": "/srv/zqaudits"}},
        )
    ]  # fmt: skip


def texts_of(value: object) -> Iterator[str]:
    match value:
        case BaseModel():
            for name in type(value).model_fields:
                yield from texts_of(getattr(value, name))
        case SecretStr():
            yield value.get_secret_value()
        case str() | Path():
            yield str(value)
        case dict():
            for each in (*value.keys(), *value.values()):
                yield from texts_of(each)
        case tuple() | list():
            for each in value:
                yield from texts_of(each)


def outputs(said: str, settings: Settings) -> str:
    """JSON, text and page of a report in which a service has said this, in each place that takes it."""
    line = Line("rows", "a row", "an object is written, and read", Result.BROKEN, said, "no store can be kept there")
    untried = Line("blobs", "a blob", "a blob is stored, and read", Result.UNTRIED, said, "no store can be kept there")
    services = {"rows": {"kind": "directory"}, "blobs": {"kind": "directory"}}
    report = ProveReport("0.1.0", "2026-11-30", services, [line, untried], [], 1.0, [said])
    report.hide(settings)
    return "\n".join([json.dumps(report.as_json(), ensure_ascii=False), *text_of(report), page_of(report)])


def test_every_section_that_takes_text_has_planted_values() -> None:
    """A new setting that takes text must be planted, too."""
    in_text = {
        (name, field) for name, model in Settings.model_fields.items() for section in [_section(model.annotation)] if section
        for field, each in section.model_fields.items() if "str" in repr(each.annotation) or "Path" in repr(each.annotation)
    }  # fmt: skip
    said = {
        (name, field) for settings in planted() for name in Settings.model_fields
        for section in _sections(getattr(settings, name)) for field in type(section).model_fields
        if any("zq" in text for text in texts_of(getattr(section, field)))
    }  # fmt: skip
    assert in_text - said == set()


def _sections(value: Any) -> list[BaseModel]:
    return [each for each in (value.values() if isinstance(value, dict) else [value]) if isinstance(each, BaseModel)]


def _section(annotation: Any) -> type[known.Section] | None:
    parts = [annotation, *getattr(annotation, "__args__", ())]
    return next((each for each in parts if isinstance(each, type) and issubclass(each, known.Section)), None)


FORMS = ("{}", "reading {!r} failed", "in {}, at once", "<Key>{}</Key>", "{}/", "(see {}: AccessDenied)", "a-{}-b")


@pytest.mark.parametrize("settings", planted(), ids=lambda each: f"{each.rows_kind}-{each.blobs_kind}")
def test_no_setting_of_any_section_is_in_a_report(settings: Settings) -> None:
    values = {text for text in texts_of(settings) if "zq" in text}
    assert len(values) >= 2
    for value in values:
        for each in (value, quote(value, safe=""), quote(value), repr(value)):
            said = "; ".join(form.format(each) for form in FORMS)
            assert "zq" not in outputs(said, settings).lower(), value


SERVICE_SAYS: Sequence[str] = (
    "User: arn:aws:iam::123456789012:user/alice is not authorized to perform: s3:PutObject",
    "tiered-app@acme-prod.iam.gserviceaccount.com does not have storage.objects.get access",
    'password authentication failed for user "alice" at 10.31.7.9 port 5432',
    "<RequestId>7FAB12CD34EF</RequestId><HostId>Uuag1LuByRx9e6j5Onimru9p</HostId>",
    "no route to db-1.eu.acme.example (fe80::7a1:22ff), [2001:db8::17]:15432",
    "C:\\Users\\alice\\store is in use; /home/alice/store as well; \\\\fileserver\\share",
    "reading 'prove/objects/17/kéy' in tiered_prove_01933f0a1b2c: AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=fWhd%2Fq",
    "the trial 01933f0a1b2c is left, until a later run removes it: s3://acme-blobs/~prove/01933f0a1b2c/",
)
NAMES = (
    "123456789012", "alice", "acme", "10.31.7.9", "7fab12cd34ef", "uuag1", "fe80", "2001:db8", "01933f0a1b2c", "akia", "fwhd", "kéy",
    "fileserver",
)  # fmt: skip


@pytest.mark.parametrize("said", SERVICE_SAYS)
def test_what_no_setting_names_is_not_repeated_either(said: str) -> None:
    shown = outputs(said, Settings(directory=Path("/srv/store"))).lower()
    assert not [name for name in NAMES if name in shown]


@pytest.mark.parametrize("bucket", ["rows", "the", "and", "one", "written", "deleted", "blobs", "not", "held", "service"])
def test_no_name_of_a_bucket_destroys_our_own_sentences(bucket: str) -> None:
    settings = Settings.model_validate({
        "postgres": {"dsn": f"postgresql://{bucket}:{bucket}@{bucket}:5432/{bucket}"}, "s3": {"bucket": bucket, "endpoint": f"http://{bucket}"},
    })  # fmt: skip
    for sentence in OWN_SENTENCES:
        assert hidden(sentence, settings) == sentence


def test_counts_and_codes_stay() -> None:
    said = "told 3 of 64 swaps at once that they had won, after 12.5 s and 300,000 calls (AccessDenied)"
    assert hidden(said, Settings(directory=Path("/srv/store"))) == said
