"""The same store for code without an event loop: every call blocks. A caller imports everything from here.

    with tiered.sync.open_storage("tiered.yaml") as storage:
        storage.put(ObjectId.create("photos", "cat.jpg"), b"…")

    open.py             `open_storage`
    calls.py            begin here: how a blocking call is made, and what a store and an upload are built on
    object_file.py      what makes an open object a binary file; object_writer.py: one that is written
    bulk.py             many operations in one call
    loop.py             the event loop of this process that blocking callers share, in a thread of its own
    callers_thread.py   runs code of the caller's in the caller's own thread

Made from the asynchronous API by `tests/tiered/sync/twins.py`, and changed there: storage.py, stored.py, multipart.py,
directory_calls.py, exports.py.

Ids, metadata, errors, settings and results are those of `tiered`. Knows nothing of tiers and of the protocol.
"""

from tiered.sync.bulk import SyncBulk
from tiered.sync.calls import Payload
from tiered.sync.directory_calls import download_directory, upload_directory
from tiered.sync.exports import export_objects, import_objects
from tiered.sync.multipart import SyncMultipartUpload, SyncResumableUpload, SyncSignedPut
from tiered.sync.object_writer import SyncObjectWriter
from tiered.sync.open import open_storage
from tiered.sync.storage import SyncTieredStorage
from tiered.sync.stored import SyncStoredObject

__all__ = [
    "Payload",
    "SyncBulk",
    "SyncMultipartUpload",
    "SyncObjectWriter",
    "SyncResumableUpload",
    "SyncSignedPut",
    "SyncStoredObject",
    "SyncTieredStorage",
    "download_directory",
    "export_objects",
    "import_objects",
    "open_storage",
    "upload_directory",
]

for _name in {*__all__} - {"Payload"}:
    globals()[_name].__module__ = __name__  # messages and pickles show them under the names that callers import
