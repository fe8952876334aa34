"""examples/celery_tasks.py: thumbnails are of the photo that is there, whatever happens in between.

test_from_the_wheel.py has a worker whose processes are killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, UnidentifiedImageError

from examples import celery_tasks
from examples.celery_tasks import EDGES, ReplacedError, catch_up, store_photo, thumbnail, thumbnail_of
from examples.process_store import ProcessStore
from tiered import Metadata, ObjectId, Settings, UnavailableError

CAT = ObjectId.create("photos", "2026/cat.png", scopes={"org": "17"})
PNG = Metadata(content_type="image/png")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessStore]:
    store = ProcessStore(Settings(directory=tmp_path))
    monkeypatch.setattr(celery_tasks, "store", store)
    celery_tasks.app.conf.task_always_eager = True
    yield store
    celery_tasks.app.conf.task_always_eager = False
    store.close()


def picture(colour: str, size: tuple[int, int] = (900, 300)) -> bytes:
    into = BytesIO()
    Image.new("RGB", size, colour).save(into, "PNG")
    return into.getvalue()


def colour_of(store: ProcessStore, edge: int) -> tuple[tuple[int, int], tuple[int, ...]] | None:
    """Size and colour of the thumbnail. None: there is none."""
    stored = store().get(thumbnail_of(CAT, edge))
    if stored is None:
        return None
    with Image.open(BytesIO(stored.read())) as image:
        colour = image.getpixel((1, 1))
        assert isinstance(colour, tuple)
        return image.size, tuple(round(each / 255) for each in colour)


def test_a_photo_gets_a_thumbnail_of_each_size(store: ProcessStore) -> None:
    store_photo(CAT, picture("red"), PNG)
    assert [colour_of(store, edge) for edge in EDGES] == [((128, 43), (1, 0, 0)), ((512, 171), (1, 0, 0))]


def test_a_photo_that_is_replaced_while_its_thumbnail_is_made_gets_that_of_the_new_one(
    store: ProcessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store().put(CAT, picture("red"), PNG)
    smaller = celery_tasks.smaller

    def replaced_once(*given: Any) -> bytes:
        made = smaller(*given)
        monkeypatch.setattr(celery_tasks, "smaller", smaller)
        store().put(CAT, picture("blue"), PNG)
        return made

    monkeypatch.setattr(celery_tasks, "smaller", replaced_once)
    with pytest.raises(ReplacedError):
        thumbnail.run(str(CAT), 128)  # Celery tries that again
    assert thumbnail.run(str(CAT), 128) > 0
    assert colour_of(store, 128) == ((128, 43), (0, 0, 1))


def test_a_photo_that_is_gone_has_no_thumbnail(store: ProcessStore) -> None:
    store_photo(CAT, picture("red"), PNG)
    store().delete(CAT)
    assert thumbnail.apply(args=[str(CAT), 128]).get() is None
    assert colour_of(store, 128) is None


def test_what_is_no_picture_fails_at_once_and_is_not_tried_again(store: ProcessStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store().put(CAT, b"<html>", PNG)
    with pytest.raises(UnidentifiedImageError):
        thumbnail.apply(args=[str(CAT), 128]).get()
    store().put(CAT, picture("red"), PNG)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(Image.DecompressionBombError):
        thumbnail.apply(args=[str(CAT), 128]).get()
    monkeypatch.setattr(celery_tasks, "BYTES_MAX", 1000)
    with pytest.raises(ValueError, match=r"photos/org\.17/objects/2026/cat\.png has \d+ bytes"):
        thumbnail.apply(args=[str(CAT), 128]).get()


def test_a_store_that_is_away_is_asked_again(store: ProcessStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store().put(CAT, picture("red"), PNG)
    get, asked = store().get, []

    def fail_once(*given: Any) -> object:
        asked.append(given[0])
        if len(asked) == 1:
            raise UnavailableError("away")
        return get(*given)

    monkeypatch.setattr(store(), "get", fail_once)
    assert thumbnail.apply(args=[str(CAT), 128]).get() > 0
    assert len(asked) == 2


def test_photos_whose_tasks_were_never_sent_are_caught_up_with(store: ProcessStore) -> None:
    store().put(CAT, picture("red"), PNG)
    assert (catch_up.run(), colour_of(store, 512)) == (1, ((512, 171), (1, 0, 0)))
    assert catch_up.run() == 0
    store().put(CAT, picture("blue"), PNG)
    assert (catch_up.run(), colour_of(store, 512)) == (1, ((512, 171), (0, 0, 1)))
