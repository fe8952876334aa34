"""A place of a feed may hold a password. No text that names one is shown beyond what was taken apart for certain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from recovery.feed.sinks.open import open_sink
from tests.given.command_line import Command
from tiered import Settings
from tiered.settings import FeedSettings, load_settings
from tiered.sinks import SINKS, Place, SinkKind

UNCLEAR = [
    "https://user:hush/hush@host/feed", "https://user:12/hush@host/feed", "https://user:hush#hush@host/feed", "https://user:12#hush@host",
    "https://user:hush?hush@host/feed", "https://user:12?hush@host/feed", "https://user:hush@hush@host/feed",
    "https://user:h@hush/hush@host/feed", "https://user:hush@host/feed?key=hush", "https://user:hush\\hush@host/feed",
    "https://user:hush hush@host/feed", "https://user:hush@[host/feed", "https://user:hush@host:port/feed", "https://user:hush@",
    "http:/user:hush@host/feed", "https:user:hush@host/feed", "https//user:hush@host/feed", "https;//user:hush@host/feed",
    "htps://user:hush@host/feed", "://user:hush@host/feed", "//user:hush@host/feed", "user:hush@host/feed", "hush@host/feed",
    "~user:hush@host/feed", "/x/https://user:hush@host/feed", " https://user:hush@host/feed", "gs://user:hush@bucket/feed",
    "gs:hush@bucket", "s3://user:hush@bucket/feed", "s3:hush@bucket", "s3://bucket/feed?key=hush", "s3://hush@bucket", "s3://b/hush@x",
    "gs://bucket:12/hush@x", "kafka://user:hush@broker:9092/topic", "kafka://user:12/x?hush@broker:9092/topic", "kafka://user:12/hush@b:9092/t",
    "kafka://user:hush/hush@b:9092/t", "kafka://b:9092/t?sasl.password=hush#hush", "kafka:/b:9092/t?sasl.password=hush",
    "b:9092/t?sasl.password=hush", "https://host/feed?password=hush", "wss://hush@host", "https://user:" + "hush" * 100 + "/@host/",
]  # fmt: skip
CLEAR = [
    ("https://user:hush@host/feed", "https://…@host/feed"), ("https://hush@host:8443", "https://…@host:8443"),
    ("https://user:hush%2Fhush%40@[::1]:8443/a", "https://…@[::1]:8443/a"), ("kafka://b:9092/t?sasl.password=hush", "kafka://b:9092/t?…"),
    ("kafka://b:9092,c:9093/t?sasl.password=hush@/x", "kafka://b:9092,c:9093/t?…"),
]  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in SINKS if kind.schemes], ids=lambda kind: kind.module)
def test_of_each_kind_a_user_and_options_are_refused_or_stay_unseen(kind: SinkKind) -> None:
    scheme, _, rest = kind.shape.partition("://")
    for user, options in (("user:hush@", ""), ("", "?key=hush"), ("user:hush@", "?key=hush")):
        text = f"{scheme}://{user}{rest}{options}"
        if (user and not kind.user) or (options and not kind.options):
            with pytest.raises(ConfigurationError) as caught:
                Place.parse(text)
            assert "hush" not in f"{caught.value!r}{caught.value.__cause__}"
        else:
            place = Place.parse(text)
            assert place.shown == f"{scheme}://{user and '…@'}{rest}{options and '?…'}" and place.name == kind.shape and place.text == text
            assert "hush" not in f"{place!r}{place.shown}{place.name}"
    for wrong in (f"user:hush/hush@{rest}", f"user:12/hush@{rest}", f"user:hush#hush@{rest}", f"{rest}#hush"):
        with pytest.raises(ConfigurationError, match="unclear where a password ends") as caught:
            Place.parse(f"{scheme}://{wrong}")
        assert "hush" not in f"{caught.value!r}{caught.value.__cause__}"
    assert Place.parse(kind.shape).shown == Place.parse(kind.shape).name == kind.shape
    with pytest.raises(ConfigurationError, match=f"names no {kind.target}: {kind.fix[:10]}"):
        Place.parse(f"{scheme}://")


@pytest.mark.parametrize("text", [
    "http://host:65536/a", "kafka://one:9092,two:99999/topic", "kafka://[::1]:70000/topic",
    *(f"{kind.schemes[0]}://host:65536/a" for kind in SINKS if kind.schemes),
])  # fmt: skip
def test_a_port_that_is_none_was_met_at_the_first_request(text: str) -> None:
    with pytest.raises(ConfigurationError, match="names no"):
        Place.parse(text)


@pytest.mark.parametrize("text", UNCLEAR)
def test_a_place_that_nobody_can_take_apart_is_refused_and_not_shown(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(make: object) -> None:
        with pytest.raises(Exception, match=r"place|URL|path|option|names") as caught:
            make()  # type: ignore[operator]
        assert "hush" not in f"{caught.value}{caught.value!r}{caught.value.__cause__}"

    refused(lambda: open_sink(text, SystemRuntime()))
    if text.startswith("kafka://user:12/x?"):
        return  # by the rules of URLs it is a broker, a topic and an odd option, and only who opens it looks at options
    refused(lambda: Place.parse(text))
    refused(lambda: FeedSettings(to=(text,)))
    refused(lambda: Settings(directory=tmp_path, feed={"to": text}))
    refused(lambda: Settings(directory=tmp_path, feed={"to": ["/var/feed", text]}))
    (file := tmp_path / "settings.yaml").write_text(f"directory: {tmp_path}\nfeed:\n  to: {json.dumps(text)}\n")
    refused(lambda: load_settings(file))
    monkeypatch.setenv("TIERED_DIRECTORY", str(tmp_path))
    for said in (text, json.dumps([text]), f"[{text}]"):
        monkeypatch.setenv("TIERED_FEED__TO", said)
        refused(lambda: load_settings(None))


@pytest.mark.parametrize(("text", "shown"), CLEAR)
def test_what_is_shown_of_a_place_has_no_secret(text: str, shown: str, tmp_path: Path) -> None:
    assert Place.parse(text).shown == shown
    settings = Settings(directory=tmp_path, feed={"enabled": True, "to": text})
    assert settings.shown()["feed.to"]["value"] == [shown]
    assert "hush" not in f"{settings!r}{settings}{settings.feed!r}{Place.parse(text)!r}{Place.parse(text).name}"


def test_values_that_are_no_place_are_not_shown(tmp_path: Path) -> None:
    for value in ({"https://user:hush@host": 1}, {"url": "hush"}, [["hush"]], [{"url": "hush"}], "[hush", 5, ["x" * 3000 + "hush"]):
        with pytest.raises(ConfigurationError, match=r"feed\.to") as caught:
            Settings(directory=tmp_path, feed={"to": value})
        assert "hush" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="feed is of type str, not a section") as caught:
        Settings(directory=tmp_path, feed="kafka://b:9092/t?sasl.password=hush")
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="endpoint") as caught:
        Settings(directory=tmp_path, gcs={"bucket": "bucket", "endpoint": f"https://user:{'hush' * 100}@host"})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("text", ["/var/a@b:c", "./a:b@c", "feed", "a/b", "~/feed", "~", "/var/feed?x#y"])
def test_a_path_that_begins_as_one_may_have_any_character(text: str) -> None:
    assert Place.parse(text).shown == text


def test_no_command_shows_a_password(tmp_path: Path) -> None:
    """Neither where the place is good, nor where it is wrong."""
    tiered = Command(tmp_path)
    tiered.environment |= {"TIERED_FEED__ENABLED": "true", "TIERED_INLINE_BYTES_MAX": "16"}
    tiered("put", "photos/org.1/objects/a", "-", stdin=b"x" * 100)
    good = "https://user:hush@127.0.0.1:1/feed"
    commands = ((0, "config", "show"), (1, "feed", "status"), (1, "status"), (1, "status", "--json"), (0, "recover", "--once"))
    for to in (good, "https://user:hush/hush@127.0.0.1:1/feed", "htps://user:hush@host", "user:hush@host/x"):
        tiered.environment["TIERED_FEED__TO"] = to
        for code, *command in commands:
            told = tiered(*command, code=code if to == good else 3)
            assert "hush" not in told + tiered.errors
        del tiered.environment["TIERED_FEED__TO"]
        if to != good:
            tiered("feed", "run", "--once", "--to", to, code=3)
            assert "hush" not in tiered.errors
    assert not list(tmp_path.glob("*hush*"))


@pytest.mark.parametrize(("one", "other"), [
    ("there", "link"), ("there/feed", "link/feed"), ("there", "there/../there/"),
    ("http://host/feed", "http://HOST:80/feed/"), ("https://host:443/feed", "HTTPS://user:word@Host/feed"),
    ("kafka://a:9092,b:9092/live", "kafka://B:9092,A:9092/live?schema.id=7"), ("s3://bucket/feed", "S3://bucket/feed/"),
])  # fmt: skip
def test_one_place_under_two_names_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    assert Place.parse(one).identity == Place.parse(other).identity


@pytest.mark.parametrize(("one", "other"), [
    ("there", "here"), ("http://host/feed", "http://host/Feed"), ("http://host/feed", "https://host/feed"),
    ("http://host:443/feed", "http://host/feed"), ("kafka://a:9092/live", "kafka://a:9093/live"), ("s3://b/feed", "gs://b/feed"),
])  # fmt: skip
def test_two_places_are_two(one: str, other: str) -> None:
    assert Place.parse(one).identity != Place.parse(other).identity
