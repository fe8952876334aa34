"""A Celery task on a store: it compresses an object. Run it with: celery -A examples.celery_tasks worker

The worker may be killed at any time. Celery then gives the task to another one, and doing it twice does no harm.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator

from celery import Celery

from examples.process_store import ProcessStore
from tiered import Metadata, ObjectId, OutcomeUnknownError, UnavailableError

app = Celery("photos", broker=os.environ.get("CELERY_BROKER_URL", "memory://"))
store = ProcessStore(os.environ.get("TIERED_CONFIG", "tiered.yaml"))

WBITS_GZIP = 31


# --8<-- [start:task]
@app.task(  # type: ignore[untyped-decorator]  # Celery ships no types
    acks_late=True,  # a task whose worker was killed is done by another
    autoretry_for=(UnavailableError, OutcomeUnknownError), retry_backoff=1, retry_jitter=True, max_retries=8,
)
def compress(path: str) -> int | None:
    """Stores a compressed copy under the usecase `archive`, and returns its size in bytes. None: there is no object.

    `path`: the storage path, `str(object_id)`. An `ObjectId` cannot be JSON, which Celery sends.
    """
    source = ObjectId.parse(path)
    stored = store().get(source)
    if stored is None:
        return None
    with stored:
        target = ObjectId.create("archive", f"{source.key}.gz", source.scopes)
        return store().put(target, compressed(stored), Metadata(content_type="application/gzip")).size


def compressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    squeeze = zlib.compressobj(wbits=WBITS_GZIP)
    for chunk in chunks:
        yield squeeze.compress(chunk)
    yield squeeze.flush()
# --8<-- [end:task]
