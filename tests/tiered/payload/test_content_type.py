"""The content type that a put guesses from the name of a file, and when it does not."""

from __future__ import annotations

import pickle
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from tiered import Metadata, ObjectId, Settings, open_storage
from tiered.metadata import CONTENT_TYPE_DEFAULT, decode_metadata, encode_metadata
from tiered.payload.content_type import content_type_of

OCTETS = "application/octet-stream"
OBJECT = ObjectId.create("photos", "cat")


@pytest.mark.parametrize(("name", "kind"), [
    ("x.json", "application/json"), ("photo.JPG", "image/jpeg"), ("x.webp", "image/webp"), ("x.json.gz", "application/gzip"),
    ("x.tar.bz2", "application/x-bzip2"), ("x.xz", "application/x-xz"), ("x.svgz", "application/gzip"), ("x.br", OCTETS),
    (".json", OCTETS), ("no-suffix", OCTETS), ("data:text,x", OCTETS), ("x.y/z", OCTETS), ("/a/b.png", "image/png"),
    ("", OCTETS), ("..", OCTETS),
])  # fmt: skip
def test_the_name_of_a_file_tells_its_content_type(name: str, kind: str) -> None:
    assert content_type_of(name) == kind


@pytest.mark.anyio
async def test_a_put_of_a_path_guesses_what_nobody_gave(tmp_path: Path) -> None:
    (path := tmp_path / "cat.png").write_bytes(b"cat")
    given = {
        "image/png": [
            None, Metadata(), Metadata(origin="x"), pickle.loads(pickle.dumps(Metadata())), deepcopy(Metadata()), copy(Metadata()),
        ],
        "text/plain": [Metadata(content_type="text/plain")],
        OCTETS: [Metadata(content_type="/".join(["application", "octet-stream"])), decode_metadata(encode_metadata(Metadata()))],
    }
    async with open_storage(Settings(directory=tmp_path / "store")) as storage:
        for expected, every in given.items():
            for metadata in every:
                await storage.put(OBJECT, path, metadata)
                head = await storage.head(OBJECT)
                assert head is not None and head.metadata.content_type == expected, metadata
        with path.open("rb") as file:
            await storage.put(OBJECT, file)
        head = await storage.head(OBJECT)
        assert head is not None and head.metadata.content_type == OCTETS, "only a path is a name that somebody chose"


def test_metadata_without_a_content_type_equal_those_that_name_the_default() -> None:
    named = Metadata(content_type="/".join(["application", "octet-stream"]))
    assert named == Metadata() and named.content_type is not CONTENT_TYPE_DEFAULT
    assert replace(Metadata()).content_type is Metadata().content_type is CONTENT_TYPE_DEFAULT
    assert type(pickle.loads(pickle.dumps(named)).content_type) is str
