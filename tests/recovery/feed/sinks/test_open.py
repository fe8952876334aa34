"""Which sink a text names, and what is said of a text that names none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from recovery.feed.sinks.open import gcs_settings, open_sink, s3_settings
from tests.given.repository import ROOT
from tiered.places import Place
from tiered.settings import GcsSettings, S3Settings, Settings


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
        found = gcs_settings(Place.parse("gs://feeds/live"), settings)
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
    for none in (None, Settings(directory=tmp_path)):
        assert s3_settings(place, none) == S3Settings(bucket="feeds")
    store = S3Settings(bucket="blobs", endpoint="http://127.0.0.1:9000", region="eu-central-1", addressing_style="path", timeout_s=3)
    aws = Settings(s3=store, bigtable={"project": "my-project", "instance": "i"})
    assert s3_settings(place, aws) == store.model_copy(update={"bucket": "feeds"})
    assert gcs_settings(Place.parse("gs://feeds"), aws).endpoint is None


def test_a_directory_needs_no_package_of_the_others() -> None:
    """And where one is missing, it is named, with the extra that has it."""
    code = f"""
import sys
from recovery.feed.sinks.open import open_sink
from changelog.base.runtime import SystemRuntime
open_sink({str(ROOT)!r}, SystemRuntime())
found = {{"httpx", "confluent_kafka", "aiohttp", "google.auth", "fastavro", "aiobotocore"}} & set(sys.modules)
assert not found, found
for name in ("httpx", "confluent_kafka", "aiohttp", "aiobotocore"):
    sys.modules[name] = None
for text in ("https://host/feed", "kafka://broker:9092/topic", "gs://bucket/feed", "s3://bucket/feed"):
    try:
        open_sink(text, SystemRuntime())
    except Exception as error:
        print(error)
"""
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.splitlines() == [
        "to deliver to https://host/feed, httpx is needed: pip install 'tiered[feed]'",
        "to deliver to kafka://broker:9092/topic, confluent_kafka is needed: pip install 'tiered[kafka]'",
        "to deliver to gs://bucket/feed, aiohttp is needed: pip install 'tiered[gcp]'",
        "to deliver to s3://bucket/feed, aiobotocore.config is needed: pip install 'tiered[s3]'",
    ]
