"""Which sink a text names, and what is said of a text that names none. A row more is carried everywhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.extras import installing
from changelog.base.runtime import SystemRuntime
from recovery.feed.sinks.bucket import settings_of
from recovery.feed.sinks.directory import DirectorySink
from recovery.feed.sinks.open import open_sink
from tests.given.command_line import Command
from tests.given.repository import ROOT
from tiered import sinks
from tiered.settings import GcsSettings, S3Settings, Settings
from tiered.sinks import SINKS, Place, SinkKind


@pytest.mark.parametrize(("text", "name"), [
    ("/var/feed", "/var/feed"),
    ("/var/feed/", "/var/feed"),
    ("gs://my-bucket", "gs://my-bucket"),
    ("gs://my-bucket/feeds/live/", "gs://my-bucket/feeds/live"),
    ("s3://my-bucket", "s3://my-bucket"),
    ("S3://my.bucket/feeds/live/", "s3://my.bucket/feeds/live"),
    ("http://user:word@host:8080/feed/", "http://host:8080/feed"),
    ("https://host", "https://host"),
    ("kafka://broker:9092/live", "kafka://broker:9092/live"),
    ("kafka://broker:9092/live-{generation}?schema.id=7", "kafka://broker:9092/live-{generation}"),
    ("kafka://broker:9092/live?schema.registry.url=https://u%40:w%26rd@registry:8081/a", "kafka://broker:9092/live"),
    ("kafka://broker:9092/live?schema.registry.url=https%3A%2F%2Fregistry", "kafka://broker:9092/live"),
    ("kafka://a.b:9092,[::1]:9093/live?security.protocol=SASL_SSL&sasl.password=word", "kafka://a.b:9092,[::1]:9093/live"),
])  # fmt: skip
def test_a_place_is_named_without_its_secrets(text: str, name: str) -> None:
    assert open_sink(text, SystemRuntime()).name == name


@pytest.mark.parametrize(("text", "told"), [
    ("", "the place of the feed is empty: give the path of a directory, gs://bucket/prefix,"),
    ("a\0b", "the place of the feed is no text of a path or a URL"),
    ("gs:bucket/feed", "a URL begins with gs://"),
    ("file:/var/feed", "is no path and no URL, and a path with such characters begins with ./ or /"),
    ("s3a://bucket/feed", "s3a://… is no place for a feed: give"),
    ("s3:bucket/feed", "a URL begins with s3://"),
    ("s3://", "s3://… names no bucket: give s3:// and its name, such as s3://my-bucket/feed"),
    ("s3://My_Bucket!/feed", "names no bucket: give s3://"),
    ("s3://bucket:9000/feed", "names no bucket"),
    ("s3://bucket/a/../b", "is no prefix of objects: give one such as s3://bucket/feeds/live"),
    ("s3://bucket/a?endpoint_override=word", "has no query"),
    ("ftp://user:word@host/feed?key=word", "ftp://… is no place for a feed"),
    ("http://user:word@xn--a/x", "http://…@xn--a/x is no URL: InvalidCodepoint"),  # IDNA refuses the host
    ("gs://", "gs://… names no bucket"),
    ("gs://My_Bucket!/feed", "names no bucket"),
    ("gs://bucket/a/../b", "is no prefix of objects"),
    ("gs://bucket/a//b", "is no prefix of objects"),
    ("gs://bucket/a%0ab", "is no prefix of objects"),
    ("gs://bucket/a?b", "has no query"),
    ("kafka://broker/topic", "names no topic: give kafka://broker:9092/topic"),
    ("kafka://broker:9092", "names no topic"),
    ("kafka://broker:9092/a/b", "names no topic"),
    ("kafka://user:word@broker:9092/topic", "a user and a password are options after a ?"),
    ("kafka://broker:9092/topic?acks=0", "has the option 'acks': options begin with"),
    ("kafka://broker:9092/topic?sasl.password=word&Acks=word", "has the option 'Acks'"),
    ("kafka://broker:9092/{generation}-{generation}", "names no topic"),
    ("kafka://broker:9092/live?schema.id=7&schema.registry.url=http://u:word@registry", "the registry knows the id, so give one of them"),
    ("kafka://broker:9092/live?schema.id=word", "schema.id of kafka://… is no id of a schema: give an integer from 0 to 2147483647"),
    ("kafka://broker:9092/live?schema.id=2147483648", "is no id of a schema"),
    ("kafka://broker:9092/live?schema.id=-1", "is no id of a schema"),
    ("kafka://broker:9092/live?schema.registry.url=", "is no URL of a schema registry: give one such as https://"),
    ("kafka://broker:9092/live?schema.registry.url=u:word@registry:8081", "is no URL of a schema registry"),
    ("kafka://broker:9092/live?schema.registry.url=ftp://u:word@registry", "is no URL of a schema registry"),
    ("kafka://broker:9092/live?schema.registry.url=https://u:wo/rd@registry", "is no URL of a schema registry"),
    ("kafka://broker:9092/live?schema.registry.url=https://registry/?key=word", "is no URL of a schema registry"),
    ("kafka://broker:9092/live?schema.registry.key=word", "options begin with security., sasl. or ssl., or are schema.registry.url or"),
    ("~nobody-of-this-name/feed", "is no path of a directory"),
])  # fmt: skip
def test_a_text_that_names_no_place(text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_sink(text, SystemRuntime())
    assert told in str(caught.value)
    assert "word" not in str(caught.value).replace("password", "") and "\n" not in str(caught.value) and "\0" not in str(caught.value)


def test_a_bucket_is_where_that_of_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endpoint(settings: Settings | None) -> str | None:
        found = settings_of(Place.parse("gs://feeds/live"), GcsSettings, settings.gcs if settings else None)
        assert found.bucket == "feeds"
        return found.endpoint

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    assert endpoint(None) is None
    assert endpoint(Settings(directory=tmp_path)) is None
    store = GcsSettings(bucket="blobs", endpoint="http://127.0.0.1:9000", connections_max=7)
    google = Settings(gcs=store, bigtable={"project": "my-project", "instance": "i"})
    assert endpoint(google) == "http://127.0.0.1:9000"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9001")
    assert endpoint(None) == "http://127.0.0.1:9001"


def test_a_bucket_of_s3_is_where_that_of_the_store_is(tmp_path: Path) -> None:
    place = Place.parse("s3://feeds/live")
    for none in (None, Settings(directory=tmp_path).s3):
        assert settings_of(place, S3Settings, none) == S3Settings(bucket="feeds")
    store = S3Settings(bucket="blobs", endpoint="http://127.0.0.1:9000", region="eu-central-1", addressing_style="path", timeout_s=3)
    aws = Settings(s3=store, bigtable={"project": "my-project", "instance": "i"})
    assert settings_of(place, S3Settings, aws.s3) == store.model_copy(update={"bucket": "feeds"})
    assert settings_of(Place.parse("gs://feeds"), GcsSettings, aws.gcs).endpoint is None


def packages_of(extra: str, installed: Mapping[str, list[str]]) -> set[str]:
    """The packages that an extra brings, as they are imported; without those whose name others share (`google`)."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked, brought = [extra], set()
    for each in asked:
        for requirement in extras[each]:
            name, _, more = requirement.partition("[")
            if name == "tiered":
                asked += more.rstrip("]").split(",")
            brought.add(re.split(r"[^A-Za-z0-9.-]", name)[0])
    found = {package for package, of in installed.items() if len(of) == 1 and of[0] in brought}
    assert found
    return found


def test_a_directory_needs_no_package_of_the_others() -> None:
    """And where one is missing, it is named, with the extra that has it."""
    installed = packages_distributions()
    packages_with_extra = {kind: packages_of(kind.extra, installed) for kind in SINKS if kind.extra}
    code = f"""
import sys
missing = {set().union(*packages_with_extra.values())!r}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
from recovery.feed.sinks.open import open_sink
from changelog.base.runtime import SystemRuntime
open_sink({str(ROOT)!r}, SystemRuntime())
for text in {[kind.shape for kind in packages_with_extra]!r}:
    try:
        open_sink(text, SystemRuntime())
    except Exception as error:
        print(error)
"""
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    named = re.findall(r"^to deliver to (.+), (\w+) is needed: pip install '\.\[(\w+)\]' in ", told, re.MULTILINE)
    assert [(shape, extra) for shape, _, extra in named] == [(kind.shape, kind.extra) for kind in packages_with_extra], told
    assert all(package in packages for (_, package, _), packages in zip(named, packages_with_extra.values(), strict=True)), told


# --- the rows --------------------------------------------------------------------------------------

PLANTED = SinkKind(
    "planted", "planted://broker/subject", "planting", ("planted",), "broker", "[a-z]+", "give planted://broker/subject", user=True,
    options=True, unasked="a subject does not tell",
)  # fmt: skip
SECRET = "planted://user:hush@broker/subject?token=hush"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """A store in a project that has one row more, and the module of that row: what it gets comes into a directory."""
    module = ModuleType("recovery.feed.sinks.planted")
    module.open_at = lambda place, runtime, settings: DirectorySink(tmp_path / place.authority, runtime)  # type: ignore[attr-defined]
    monkeypatch.setattr(sinks, "SINKS", (*SINKS, PLANTED))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    tiered = Command(tmp_path)
    tiered.environment |= {"TIERED_FEED__ENABLED": "true", "TIERED_FEED__TO": SECRET, "TIERED_INLINE_BYTES_MAX": "16"}
    tiered("put", "photos/objects/a", "-", stdin=b"x" * 100)
    return tiered


def test_a_row_more_is_delivered_to_shown_and_told(planted: Command) -> None:
    shown = json.loads(planted("config", "show", "--json"))["feed.to"]["value"]
    assert shown == ["planted://…@broker/subject?…"]
    planted("feed", "run", "--once")
    assert list((planted.directory / "broker").glob("generation-*/*.json"))
    told, unasked = planted("feed", "status", code=range(2)), "a subject does not tell whether another store delivers there, too"
    assert "planted://broker/subject" in told and "hush" not in told
    assert json.loads(planted("feed", "status", "--json", code=range(2)))["sinks"][0]["unasked"] == unasked
    assert unasked in told


@pytest.mark.parametrize(("to", "told"), [
    ("planted://12/subject", "planted://… names no broker: give planted://broker/subject"),
    ("planted:broker", "a URL begins with planted://"),
    ("plant://broker", "or planted://broker/subject"),
])  # fmt: skip
def test_an_address_that_is_not_as_its_row_says_is_refused_with_the_fix(to: str, told: str, planted: Command) -> None:
    planted("feed", "run", "--once", "--to", to, code=3)
    assert told in planted.errors
    planted.environment["TIERED_FEED__TO"] = to
    planted("status", code=3)
    assert told in planted.errors


def test_where_the_package_of_a_row_is_missing_its_extra_is_named(planted: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "recovery.feed.sinks.planted")
    planted("feed", "run", "--once", code=3)
    assert "to deliver to planted://…@broker/subject?…, " in planted.errors and installing("planting") in planted.errors


def test_the_help_of_the_command_has_a_row_more(tmp_path: Path) -> None:
    code = f"from tiered import sinks\nsinks.SINKS += (sinks.{PLANTED!r},)\nfrom recovery.cli.main import main\nmain()"
    shown = Command(tmp_path, store=False)("feed", "run", "--help", python=("-c", code))
    assert all(kind.shape in " ".join(shown.replace("│", " ").split()) for kind in (*SINKS, PLANTED))


def test_the_page_has_what_each_row_says() -> None:
    page = (ROOT / "docs" / "feed-sinks.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \| [^|]+ \| (?:nothing|`pip install '\.\[(\w+)\]'`) \|$", page, re.MULTILINE)
    told = [(set(re.findall(r"`(\w+)://", address)), extra) for address, extra in rows]
    assert told == [(set(kind.schemes), kind.extra) for kind in SINKS]
