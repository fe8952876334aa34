"""`tiered feed`: a change feed in files, read by the rules of CDC v2. Only `run` and `status` need a store.

Nothing is written but what `convert` is told to and `receive` is sent. Exit codes of the commands that read files:

    0    done; of `check`: the feed is sound
    3    the request is wrong, or a file cannot be read
    6    a file is damaged or foreign, or the feed breaks a rule: where and which is said
"""

from __future__ import annotations

import typer

from recovery.cli.feed.check import check
from recovery.cli.feed.convert import convert
from recovery.cli.feed.follow import follow
from recovery.cli.feed.receive import receive
from recovery.cli.feed.run import run
from recovery.cli.feed.status import feed_status
from recovery.cli.feed.view import view
from recovery.cli.shared import shared

feed_app = typer.Typer(help="A change feed: what its files say, whether they are sound, and how the writer does.", no_args_is_help=True)
for command in (run, receive):
    feed_app.command()(command)
feed_app.command("status")(feed_status)
for command in (view, check, convert, follow):
    feed_app.command()(command)


@feed_app.callback()
@shared
def choose_feed() -> None:
    """A change feed: what its files say, whether they are sound, and how the writer of a store does."""
