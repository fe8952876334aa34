"""`tiered feed status`: does the change feed of a store keep up, and how far is each sink?

It shows what `tiered status` shows of the feed, and writes nothing to the store. Exit codes:

    0    it is live, it makes its first pass, its writer has ended in good order, or there is no feed
    1    it stands still or is behind, or nobody has started a writer
    4    its checkpoint could not be read, so its state is not known
"""

from __future__ import annotations

import shutil
import sys

import anyio
import typer

from changelog.base.runtime import SystemRuntime
from recovery.cli.output import dump, write
from recovery.cli.shared import choice, guard, shared
from recovery.states import CODES

NONE = "There is no change feed: feed.enabled is not set, and no writer has ever begun one."


@shared
def feed_status() -> None:
    """Says whether the change feed keeps up, how far each sink is, and what to type. Writes nothing."""

    async def command() -> int:
        from recovery.cli.status_lines import feed_lines
        from recovery.status.as_json import feed_json
        from recovery.status.look import gather
        from recovery.status.opened import open_to_look

        settings, runtime = choice.existing(), SystemRuntime()
        async with open_to_look(settings, runtime) as (backends, _):
            found = await gather(backends, settings, runtime)
        feed = found.feed
        none = found.problems or (NONE,)
        if choice.json:
            write(dump({"state": None, "why": " ".join(none)} if feed is None else feed_json(feed)))
        elif feed is not None:
            width = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
            for line in feed_lines(found, feed, width, choice.typed()):
                write(line.text)
        else:
            for sentence in none:
                write(sentence)
        if feed is None:
            return 0 if found.answers or not found.durable else 4
        return CODES[feed.state.level]

    raise typer.Exit(guard(lambda: anyio.run(command)))
