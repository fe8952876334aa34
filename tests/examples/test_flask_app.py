"""examples/flask_app.py and examples/process_store.py: they stream, answer ranges, and open a store in each process."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient

from examples.flask_app import create_app
from examples.process_store import ProcessStore
from tests.given.directories import open_below
from tests.tiered.sync.test_storage import FORKING, in_child
from tiered import ObjectId, RateLimitedError, Settings, UnavailableError

LARGE = bytes(range(256)) * 6_000
CAT = "/photos/17/2026/cat.jpg"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Flask]:
    app = create_app(Settings(directory=tmp_path))
    yield app
    app.extensions["tiered"].close()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


def test_what_is_put_is_served_until_it_is_deleted(client: FlaskClient) -> None:
    assert client.put(CAT, data=LARGE, content_type="image/jpeg").json == {"size": len(LARGE)}
    got = client.get(CAT)
    assert (got.status_code, got.data, got.content_type) == (200, LARGE, "image/jpeg")
    assert client.delete(CAT).status_code == 204
    assert client.get(CAT).status_code == 404


@pytest.mark.parametrize(
    ("asked", "status", "start", "stop"), [("bytes=5-9", 206, 5, 10), ("bytes=-4", 206, -4, None), ("bytes=0-1,4-5", 200, 0, None)]
)
def test_a_range_is_served(client: FlaskClient, asked: str, status: int, start: int, stop: int | None) -> None:
    client.put(CAT, data=LARGE)
    got = client.get(CAT, headers={"Range": asked})
    assert (got.status_code, got.data) == (status, LARGE[start:stop])


def test_a_range_after_the_end_is_a_416_with_the_size(client: FlaskClient) -> None:
    client.put(CAT, data=b"a cat")
    got = client.get(CAT, headers={"Range": "bytes=5-"})
    assert (got.status_code, got.headers["Content-Range"]) == (416, "bytes */5")


def test_nothing_is_stored_when_the_client_goes_away_while_it_uploads(app: Flask, client: FlaskClient) -> None:
    promised = {"CONTENT_LENGTH": str(len(LARGE))}
    got = client.put(CAT, input_stream=BytesIO(LARGE[:70_000]), environ_overrides=promised)
    assert got.status_code == 400
    assert list(app.extensions["tiered"]().list()) == []


def test_the_object_is_closed_when_the_client_goes_away_while_it_downloads(client: FlaskClient, tmp_path: Path) -> None:
    client.put(CAT, data=LARGE)
    got = client.get(CAT, buffered=False)
    next(iter(got.response))
    assert open_below(tmp_path / "blobs") != []
    got.close()
    assert open_below(tmp_path / "blobs") == []


def test_a_store_that_is_away_is_a_503_and_a_rate_that_is_used_up_a_429(
    app: Flask, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, told in ((UnavailableError("away"), (503, "1")), (RateLimitedError("too fast", 2.5), (429, "3"))):
        def fail(*_: object, error: UnavailableError = error, **options: object) -> None:
            raise error

        monkeypatch.setattr(app.extensions["tiered"](), "get", fail)
        got = client.get(CAT)
        assert (got.status_code, got.headers["Retry-After"]) == told
    assert client.put("/photos/17/a%01b", data=b"").status_code == 400


def test_a_body_of_unknown_length_is_refused_and_not_taken_for_empty(app: Flask, client: FlaskClient) -> None:
    unbounded = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}  # of a server that does not decode chunks
    assert client.put(CAT, input_stream=BytesIO(LARGE), environ_overrides=unbounded).status_code == 411
    assert list(app.extensions["tiered"]().list()) == []


@FORKING
def test_each_process_opens_a_store_of_its_own(tmp_path: Path) -> None:
    store = ProcessStore(Settings(directory=tmp_path))

    def use() -> object:
        return store().put(ObjectId.create("notes", "a"), b"a").size

    with store._lock:  # as another thread that opens the store
        assert in_child([use, store.close, use]) == ["1", "None", "1"]
    mine = store()
    assert store() is mine and [str(each.object_id) for each in mine.list()] == ["notes/objects/a"]
    store.close()
