"""A blob store over two tiers. Every write survives a kill of the process. All that a caller needs is imported here.

    storage.py       begin here: `TieredStorage`, with put, get, head, delete, list
    open.py          `open_storage`: opens the backends that the settings name
    object_writer.py what `open` returns, for code that writes; bulk.py: many operations in one call
    comparison.py    what a caller's own rows name, beside what is stored
    multipart.py     uploads that stay open: in parts, or from an offset on
    object_id.py, metadata.py, stored.py, errors.py     what a caller passes and gets
    text.py          checks text, and quotes values in messages
    sinks.py         where a feed can be delivered; whose.py: whose a path is
    links.py         signed links, and what they allow
    own.py           notices another's `changelog` or `recovery`; __main__.py is the door of the command
    settings/        all settings, from code, a file or the environment
    protocol/        how two tiers that share no transaction lose nothing
    services/        what a tier must offer, and how it is asked; limits/: how much may be asked for
    transfer/        large payloads on their way; notes/: what is noted in the changelog besides changes
    payload/         turns what a caller passes into chunks of bytes
    embedded/, bigtable/, postgres/, gcs/, s3/   the tiers; buckets/: what GCS and S3 have in common
    kinds/           what opens each of them, and how somebody else's is found
    telemetry/       metrics and traces of calls, for those who ask for them
    provision/       makes and checks what a store needs before it is opened
    directories/     copies what differs between a local directory and the objects of a prefix
    exports/         all objects, written to a directory or a bucket, and stored again
    sync/            the same API for callers without an event loop
    asgi/            the app that answers signed links
    filesystem/      the store as an fsspec file system, `tiered://`
    testing/         the store in memory, for users' tests

Imports nothing of `recovery`, which recovers, feeds, audits and has the command. But one file sets both, so all
settings are here, with where a feed goes; a store tells recovery by notes; and `open_storage(recover=True)` runs it.
"""

import tiered.own  # noqa: F401, I001 - first: the imports below fail strangely where `changelog` is another's

from typing import TYPE_CHECKING

from changelog.change import ChangeId
from tiered.bulk import Bulk, ItemResult, LoadedObject, PutRequest, Requests
from tiered.errors import (
    AtCapacityError,
    CancelledElsewhereError,
    ClockBehindError,
    ConditionFailedError,
    ConfigurationError,
    CorruptRecordError,
    DanglingTombstoneError,
    InvalidRequestError,
    LeaseLostError,
    OffsetMismatchError,
    OutcomeUnknownError,
    RangeNotSatisfiableError,
    RateLimitedError,
    ServiceAwayError,
    TieredError,
    UnavailableError,
    UploadEndedError,
)
from tiered.metadata import Expiration, Metadata, TimeToIdle, TimeToLive
from tiered.multipart import MultipartUpload, ResumableUpload, SignedPut
from tiered.object_id import ObjectId, ObjectPrefix, escape_scope, unescape_scope
from tiered.object_writer import ObjectWriter
from tiered.open import open_storage
from tiered.payload.destinations import Destination
from tiered.payload.streams import Payload
from tiered.services.backends import ByteRange
from tiered.services.capabilities import Part
from tiered.protocol.conditions import ANY_REVISION, IfRevision
from tiered.protocol.writing import Outcome
from tiered.settings import Settings, load_settings
from tiered.storage import TieredStorage
from tiered.stored import (
    Compression,
    CustomAtEnd,
    Difference,
    Folder,
    ListEntry,
    ListPage,
    ObjectHead,
    Progress,
    PutResult,
    StoredObject,
    Tier,
)

__all__ = [
    "ANY_REVISION",
    "AtCapacityError",
    "Bulk",
    "ByteRange",
    "CancelledElsewhereError",
    "ChangeId",
    "ClockBehindError",
    "Compression",
    "ConditionFailedError",
    "ConfigurationError",
    "CorruptRecordError",
    "CustomAtEnd",
    "DanglingTombstoneError",
    "Destination",
    "Difference",
    "Expiration",
    "Folder",
    "IfRevision",
    "InvalidRequestError",
    "ItemResult",
    "LeaseLostError",
    "ListEntry",
    "ListPage",
    "LoadedObject",
    "Metadata",
    "MultipartUpload",
    "ObjectHead",
    "ObjectId",
    "ObjectPrefix",
    "ObjectWriter",
    "OffsetMismatchError",
    "Outcome",
    "OutcomeUnknownError",
    "Part",
    "Payload",
    "Progress",
    "PutRequest",
    "PutResult",
    "RangeNotSatisfiableError",
    "RateLimitedError",
    "Requests",
    "ResumableUpload",
    "ServiceAwayError",
    "Settings",
    "SignedPut",
    "StoredObject",
    "Tier",
    "TieredError",
    "TieredStorage",
    "TimeToIdle",
    "TimeToLive",
    "UnavailableError",
    "UploadEndedError",
    "escape_scope",
    "load_settings",
    "open_storage",
    "unescape_scope",
]

if TYPE_CHECKING:
    from tiered.telemetry.telemetry import Telemetry as Telemetry


def __getattr__(name: str) -> object:
    """Imports `Telemetry` when it is asked for: a store without telemetry loads nothing of it."""
    if name == "Telemetry":
        from tiered.telemetry.telemetry import Telemetry

        return Telemetry
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


for _error in (
    AtCapacityError, CancelledElsewhereError, ClockBehindError, ConditionFailedError, ConfigurationError, CorruptRecordError,
    DanglingTombstoneError, InvalidRequestError, LeaseLostError, OffsetMismatchError, OutcomeUnknownError, RangeNotSatisfiableError,
    RateLimitedError, ServiceAwayError, TieredError, UnavailableError, UploadEndedError,
):
    _error.__module__ = __name__  # tracebacks show them under the names that callers import
