"""Thumbnails of photos, made by Celery. Run it with: celery -A examples.celery_tasks worker --beat

A service calls `store_photo`. Its process may die after the photo is stored and before the tasks are sent: then
`catch_up` sends them, once an hour.
"""

from __future__ import annotations

import os
from io import BytesIO
from typing import Any

from celery import Celery, group
from PIL import Image, ImageOps

from examples.process_store import ProcessStore
from tiered import ListEntry, Metadata, ObjectId, ObjectPrefix, OutcomeUnknownError, UnavailableError
from tiered.sync import Payload, SyncStoredObject

app = Celery("photos", broker=os.environ.get("CELERY_BROKER_URL", "memory://"))
app.conf.beat_schedule = {"catch up": {"task": "examples.celery_tasks.catch_up", "schedule": 3600.0}}
store = ProcessStore(os.environ.get("TIERED_CONFIG", "tiered.yaml"))

EDGES = (128, 512)
BYTES_MAX = 50_000_000
Image.MAX_IMAGE_PIXELS = 50_000_000  # a picture of more than twice as many would fill the memory: Pillow refuses it


class ReplacedError(Exception):
    """The photo was replaced while a thumbnail of it was made."""


def store_photo(photo: ObjectId, payload: Payload, metadata: Metadata) -> None:
    store().put(photo, payload, metadata)
    thumbnails(photo).delay()


def thumbnails(photo: ObjectId) -> Any:
    """A task for each size. An `ObjectId` cannot be JSON, which Celery sends, so it is sent as its path."""
    return group(thumbnail.s(str(photo), edge) for edge in EDGES)


# --8<-- [start:task]
@app.task(  # type: ignore[untyped-decorator]  # Celery ships no types
    acks_late=True, reject_on_worker_lost=True,  # a task whose process was killed is done by another
    autoretry_for=(UnavailableError, OutcomeUnknownError, ReplacedError), retry_backoff=1, retry_jitter=True, max_retries=8,
)
def thumbnail(path: str, edge: int) -> int | None:
    """Stores a thumbnail, and returns its size in bytes. None: the photo is gone, and so is its thumbnail."""
    photo = ObjectId.parse(path)
    target = thumbnail_of(photo, edge)
    stored = store().get(photo)
    if stored is not None:
        with stored:
            made = store().put(target, smaller(stored, edge), Metadata(content_type="image/jpeg", custom={"of": str(stored.revision)}))
        head = store().head(photo)
        if head is not None and head.revision == stored.revision:
            return made.size
        if head is not None:
            raise ReplacedError(path)  # the task of the new photo may have been faster
    store().delete(target)
    return None
# --8<-- [end:task]


def smaller(stored: SyncStoredObject, edge: int) -> bytes:
    """JPEG of at most `edge` pixels a side. Pillow's errors say what is no picture: another attempt heals none."""
    if stored.size > BYTES_MAX:
        raise ValueError(f"{stored.object_id} has {stored.size} bytes, and a photo has at most {BYTES_MAX}")
    with Image.open(BytesIO(stored.read())) as picture:
        picture.thumbnail((edge, edge))
        into = BytesIO()
        ImageOps.exif_transpose(picture).convert("RGB").save(into, "JPEG")
        return into.getvalue()


def thumbnail_of(photo: ObjectId, edge: int) -> ObjectId:
    return ObjectId.create("thumbnails", f"{edge}/{photo.key}", photo.scopes)


@app.task  # type: ignore[untyped-decorator]
def catch_up() -> int:
    """Sends the tasks of photos that lack a thumbnail, and returns of how many. What is no picture always does."""
    lacking = [each.object_id for each in store().list(ObjectPrefix.create("photos")) if any(lacks(each, edge) for edge in EDGES)]
    for photo in lacking:
        thumbnails(photo).delay()
    return len(lacking)


def lacks(photo: ListEntry, edge: int) -> bool:
    head = store().head(thumbnail_of(photo.object_id, edge))
    return head is None or head.metadata.custom.get("of") != str(photo.revision)
