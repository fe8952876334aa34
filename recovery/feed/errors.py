"""The error of a change feed that is not sound or cannot be read, and the rules that a feed can break.

A misuse of this folder's functions, such as a time that is no number, is an `InvalidRequestError`, not a `FeedError`.
"""

from __future__ import annotations

from enum import Enum

from changelog.base.errors import InvalidRequestError, TieredError


class Rule(Enum):
    """Each rule that a feed can break. The value is what the rule asks for, as one sentence."""

    # What a file and its messages look like.
    FORM = "each message has one of the forms that docs/feed.md describes"
    WHOLE = "a file does not end in the middle of a message"
    SCHEMA = "the schema of a file is the union that CDC v2 prescribes, and the one that was asked for"
    VALUE = "times, diffs and counts are 64-bit integers, and data is JSON"
    GENERATION = "the files of one feed are of one generation"
    # What messages say together.
    TIME = "no time is negative"
    INTERVAL = "a progress message begins no later than it ends, and its counts are within it, one for each time, not negative"
    COUNT = "a time has no more distinct updates than progress declares"
    DIFF = "at one time, a record has one diff"
    PROGRESS = "two progress messages declare the same count for a time"
    ORDER = "without CDC v2, times do not go back unless a progress message is repeated"

    def __str__(self) -> str:
        return self.name.lower()


class FeedError(TieredError):
    """What was read is no sound change feed. Nothing of the message was applied; what came before it was.

    `rule`: which rule it breaks. `why`: what was found, as one clause. `where`: the file and the position in it, such
    as `feed.jsonl, line 7`; empty if whoever raised it was given no file.
    """

    def __init__(self, rule: Rule, why: str, where: str = "") -> None:
        super().__init__(f"{where + ': ' if where else ''}{why} (rule {rule}: {rule.value})")
        self.rule = rule
        self.why = why
        self.where = where

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.rule, self.why, self.where), self.__dict__

    def at(self, where: str) -> FeedError:
        """Returns the same error with the file and the position, unless it has them."""
        return self if self.where else FeedError(self.rule, self.why, where)


class SchemaMismatchError(InvalidRequestError):
    """A message does not fit the Avro schema that it is written with. Nothing of it was written."""
