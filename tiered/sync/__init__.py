"""The same store for code without an event loop: every call blocks. A caller imports everything from here.

    with tiered.sync.open_storage("tiered.yaml") as storage:
        storage.put(ObjectId.create("photos", "cat.jpg"), b"…")

    storage.py          begin here: `open_storage`, and `SyncTieredStorage` with the methods of the asynchronous one
    stored.py           `SyncStoredObject`, an open object as a binary file; object_writer.py: one that is written
    bulk.py             many operations in one call; multipart.py: uploads that stay open
    directory_calls.py  copies what differs between a local directory and a prefix
    exports.py          all objects written elsewhere, and back
    loop.py             the event loop of this process that blocking callers share, in a thread of its own
    callers_thread.py   runs the caller's iterators in the caller's own thread

Ids, metadata, errors, settings and results are those of `tiered`. Knows nothing of tiers and of the protocol.
"""

from tiered.sync.bulk import SyncBulk
from tiered.sync.directory_calls import download_directory, upload_directory
from tiered.sync.exports import export_objects, import_objects
from tiered.sync.multipart import SyncMultipartUpload, SyncResumableUpload, SyncSignedPut
from tiered.sync.object_writer import SyncObjectWriter
from tiered.sync.storage import Payload, SyncTieredStorage, open_storage
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

for _public in (
    SyncBulk, SyncObjectWriter, SyncStoredObject, SyncTieredStorage, download_directory, export_objects, import_objects, open_storage,
    upload_directory,
):  # fmt: skip
    _public.__module__ = __name__  # messages and pickles show them under the names that callers import
