"""The change feed: messages that may be repeated, reordered and cut anywhere, and still give each reader the same view.

    messages.py   begin here: updates and progress, as values
    reader.py     CdcReader delivers what is complete; it trusts progress alone
    held.py       the updates that it holds; temporary.py: on the disk, if they are many
    times.py      its times in order, and the intervals that progress covers
    rollback.py   RollbackReader follows the rule of the published sketch, for ordered channels only
    batch.py      what readers deliver and hold; view.py: what batches add up to
    spelling.py   messages as JSON, as deltas and as short text
    avro.py       messages as Avro; needs the extra `feed`. unions.py: its values as JSON
    blocks.py     the parts of an Avro file, within bounds
    files.py      reads and writes all of these as files
    follow.py     reads a directory of files while they grow
    index_value.py  what the published index stores for an object
    errors.py     FeedError, and the rules that a feed can break
    writer/       writes the feed of a store; sinks/: where it is delivered

Only `files.py`, `follow.py` and `temporary.py` do I/O. Nothing here knows the store, the audit or a command.
docs/feed.md explains the protocol.
"""

from recovery.feed.batch import BufferedUpdates, FeedBatch, Waiting
from recovery.feed.errors import FeedError, Rule
from recovery.feed.messages import Message, Progress, Update, Updates
from recovery.feed.reader import CdcReader
from recovery.feed.rollback import RollbackReader

__all__ = [
    "BufferedUpdates",
    "CdcReader",
    "FeedBatch",
    "FeedError",
    "Message",
    "Progress",
    "RollbackReader",
    "Rule",
    "Update",
    "Updates",
    "Waiting",
]
