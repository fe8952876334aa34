"""Whose blobs a bucket holds: one marker for each store that owns the bucket, or a prefix of it. Pure; no I/O.

    ~owners/owner        owns all names of the bucket
    ~owners/a/b/owner    owns the names that begin with a/b/

The owner is the table of objects, by its full resource name, because rows alone say which blobs live. A table that was
restored from a backup under another name is another owner. All markers lie in one place, so one listing tells of every
owner, and whether two of them overlap. What a marker says is in its metadata, so the listing tells that, too; its bytes
say it to people. `tiered provision` creates markers (`tiered.provision.bucket`), and nothing else writes them. No blob
of ours has such a name, because no new usecase and no prefix begins with `~`. Listings show none that has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tiered.settings import TRIALS

OWNERS = "~owners/"
AFTER_OWNERS = "~owners0"
"""The first possible name after all markers: `0` comes after `/`."""

OWNER_FIELDS = "kind,items(name,generation,metadata),nextPageToken"

_LAST = "owner"
_OWNER, _VERSION = "tiered-owner", "tiered-marker"
_VERSION_NOW = "1"


class Marker(NamedTuple):
    """A marker, as it was listed. `owner`: the table; None: this software cannot read it. `generation`: of the marker.
    """

    prefix: str
    owner: str | None
    generation: int


def place(bucket: str, prefix: str) -> str:
    """How messages name the names that an owner has. `bucket`: its name in GCS; elsewhere its address, `s3://name`."""
    return f"{bucket if '://' in bucket else f'gs://{bucket}'}/{prefix}"


def marker_name(prefix: str) -> str:
    return f"{OWNERS}{prefix}{_LAST}"


def is_marker(name: str) -> bool:
    """Whether a name is that of a marker. Objectstore may have blobs of a usecase `~owners`; they end in a revision."""
    return name.startswith(OWNERS) and f"/{name}".endswith(f"/{_LAST}")


def encode_marker(bucket: str, prefix: str, owner: str) -> tuple[Mapping[str, str], bytes]:
    """Returns the metadata and the bytes of a marker."""
    said = f"All blobs of {place(bucket, prefix)} belong to the store of {owner}. Other stores refuse to use them.\n"
    return {_OWNER: owner, _VERSION: _VERSION_NOW}, said.encode()


def decode_markers(items: Iterable[Mapping[str, Any]]) -> Sequence[Marker]:
    """Returns the markers among listed items. Other objects are left out, such as the placeholder of a folder."""
    found = []
    for item in items:
        if (prefix := owned_prefix(str(item.get("name", "")))) is not None:
            said = item.get("metadata")
            owner = said.get(_OWNER) if isinstance(said, Mapping) and said.get(_VERSION) == _VERSION_NOW else None
            found.append(Marker(prefix, owner if isinstance(owner, str) else None, int(item.get("generation") or 0)))
    return found


def own_marker(markers: Iterable[Marker], prefix: str) -> Marker | None:
    """The marker of exactly this prefix, whoever owns it."""
    return next((marker for marker in markers if marker.prefix == prefix), None)


def conflict(markers: Iterable[Marker], bucket: str, prefix: str, owner: str) -> str | None:
    """Why this store must not use the names below `prefix`: another store owns them, or some, in one sentence."""
    here = place(bucket, prefix)
    section = bucket.partition("://")[0] if "://" in bucket else "gcs"
    cure = f"give this store another {section}.bucket, or a {section}.prefix of its own"
    for marker in markers:
        if marker.prefix != prefix and TRIALS in (marker.prefix + prefix):
            continue  # of a trial and what is around it, neither sees the other
        there, whose = place(bucket, marker.prefix), f"the store of {marker.owner}"
        if marker.owner is None and (marker.prefix.startswith(prefix) or prefix.startswith(marker.prefix)):
            name = place(bucket, marker_name(marker.prefix))
            return f"nobody can tell who owns {there}: {name} is of newer software, or was changed: install a newer tiered, or restore it"
        if marker.prefix == prefix and marker.owner != owner:
            return f"{here} belongs to {whose}, and this is the store of {owner}: {cure}"
        if marker.prefix != prefix and prefix.startswith(marker.prefix):
            return f"{here} lies in {there}, which belongs to {whose}: {cure}"
        if marker.prefix != prefix and marker.prefix.startswith(prefix):
            return f"{here} holds {there}, which belongs to {whose}: {cure}"
    return None


def owned_prefix(name: str) -> str | None:
    """The prefix of the names that somebody owns by this marker. None: it is no marker."""
    prefix = name.removeprefix(OWNERS).removesuffix(_LAST)
    return prefix if name == marker_name(prefix) and (not prefix or prefix.endswith("/")) else None


def taken(bucket: str, prefix: str, owned: Iterable[str]) -> str | None:
    """That a store owns the names below `prefix`, or some, so that nobody else may write there. None: none does.

    `owned`: the prefixes that stores own.
    """
    for each in owned:
        if prefix.startswith(each) or each.startswith(prefix):
            verb = "lies in" if prefix.startswith(each) else "holds"
            return f"{place(bucket, prefix)} {verb} {place(bucket, each)}, which belongs to a store and has its blobs alone"
    return None


def ownerless(bucket: str, prefix: str) -> str:
    """That nobody owns these names yet, and what to run."""
    return f"no store owns {place(bucket, prefix)} yet: run 'tiered provision', with --adopt-bucket if it holds this store's blobs already"
