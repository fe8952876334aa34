"""`tiered feed follow`: a directory; prints updates as progress makes them certain. What it has printed stays true.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime
from recovery.cli.feed.inputs import SchemaOption, feed_message, finish, generation_hint, schema_of, updates_are
from recovery.cli.output import dump, write
from recovery.cli.shared import choice, say, shared, stay
from recovery.display import escape_controls
from tiered.text import refuse_password

if TYPE_CHECKING:
    from recovery.feed import CdcReader, FeedBatch
    from recovery.feed.messages import Message

LOOK_EVERY_S = 0.2
BREATHE_EVERY = 1000
"""After so many messages, it looks whether it was interrupted."""
MESSAGE_UPDATES = 1000
"""It prints at most so many updates as one message of JSON."""

Directory = Annotated[str, typer.Argument(metavar="DIR", help="A directory into which a writer puts or appends files.")]
From = Annotated[int, typer.Option(
    "--from", min=0, metavar="TIME", help="Print only what is at this time or later: go on after an earlier follow."
)]  # fmt: skip
Idle = Annotated[float | None, typer.Option("--until-idle", min=0, max=86_400, metavar="SECONDS", help="End after so long without news.")]
For = Annotated[float | None, typer.Option("--for", min=0, max=86_400 * 365, metavar="SECONDS", help="End after so long, even with news.")]


@shared
def follow(into: Directory, begin: From = 0, until_idle: Idle = None, for_s: For = None, schema: SchemaOption = None) -> None:
    """Prints updates as progress makes them certain, until Ctrl-C or the end of the feed. The output is a feed, too."""

    async def follow_it() -> int:
        from recovery.feed.follow import Following
        from recovery.feed.reader import CdcReader

        refuse_password("the directory", into)
        if instead := generation_hint(into):
            raise InvalidRequestError(f"the files of a feed are not in the directory {into} itself{instead}")
        runtime, reader, following = SystemRuntime(), CdcReader(), Following(into, schema_of(schema))
        stay()
        began_s = news_s = runtime.monotonic()
        printed, number = begin, 0
        while True:
            for located in following.look():
                number += 1
                news_s = runtime.monotonic()
                printed = _print_batch(feed_message(reader, located), printed)
                if number % BREATHE_EVERY == 0:
                    await runtime.sleep(0)
            if sys.stdout is not None:
                sys.stdout.flush()
            now_s = runtime.monotonic()
            idle = until_idle is not None and now_s - news_s >= until_idle
            over = for_s is not None and now_s - began_s >= for_s
            if idle or over or not reader.frontier:
                _say_rest(reader, following.unfinished)
                return 0
            await runtime.sleep(LOOK_EVERY_S)

    finish(lambda: anyio.run(follow_it))


def _print_batch(batch: FeedBatch | None, printed: int) -> int:
    """Prints what a batch has from the time `printed` on, as messages. Returns where the next one begins."""
    from recovery.feed.batch import END
    from recovery.feed.messages import Progress, Update, Updates
    from recovery.feed.spelling import to_json, to_text

    if batch is None:
        return printed
    frontier = batch.frontier[0] if batch.frontier else END
    if frontier <= printed:
        return printed
    updates = [Update(*each) for each in sorted(batch.updates, key=lambda each: each[1]) if each[1] >= printed]
    counts: dict[int, int] = {}
    for each in updates:
        counts[each.time] = counts.get(each.time, 0) + 1
    progress = Progress((printed,), batch.frontier, tuple(sorted(counts.items())))
    cut = range(0, len(updates), MESSAGE_UPDATES)
    messages: list[Message] = [*(Updates(tuple(updates[begin : begin + MESSAGE_UPDATES])) for begin in cut), progress]
    for message in messages:
        for line in [dump(to_json(message))] if choice.json else to_text(message):
            write(line if choice.json else escape_controls(line))
    return frontier


def _say_rest(reader: CdcReader, unfinished: Iterable[str]) -> None:
    if held := reader.held.updates:
        say(f"{updates_are(held)} not complete yet, and not printed: 'tiered feed check' says what is missing")
    for name in unfinished:
        say(f"{name} ends in the middle of a message, which was not read")
