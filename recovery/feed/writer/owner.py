"""`owner_of`: by which name a feed claims its places. A place of another feed is not delivered to.

    note   feed-id    {"feed":32 hex digits}

The id is drawn once for each changelog, and stays. A backup and a copy of the store have it, too. So the name of a
table or the path of a directory may change, and a restored store finds its places again.
"""

from __future__ import annotations

from changelog.base.errors import UnavailableError
from changelog.base.runtime import Runtime
from changelog.key_values import KeyValueStore
from recovery.feed.sinks.sink import Owner
from tiered.kinds.chosen import address_of
from tiered.notes.note_fields import NoteFields, canonical
from tiered.settings import Settings

ID_NOTE = "feed-id"
TRIES = 8
_FIX = "if newer software wrote it, update this software; otherwise restore it from the file _feed.json of a place of this feed"


async def owner_of(log: KeyValueStore, runtime: Runtime, settings: Settings) -> Owner:
    """Returns who the feed of this store is. Draws the id if there is none yet.

    Raises as `KeyValueStore.swap_note`. `CorruptRecordError`: the note is damaged, and stays as it is.
    """
    for _ in range(TRIES):
        if (raw := await log.read_note(ID_NOTE)) is not None:
            found = NoteFields.parse(raw, ID_NOTE, _FIX)
            found.only("feed")
            return Owner(found.text("feed"), _named(settings))
        await log.swap_note(ID_NOTE, None, canonical({"feed": f"{runtime.random.getrandbits(128):032x}"}))
    raise UnavailableError(f"the note {ID_NOTE} was not written: others changed it {TRIES} times meanwhile")


def _named(settings: Settings) -> str:
    """What a person calls the store."""
    return f"the directory {settings.directory}" if settings.embedded else address_of(settings)
