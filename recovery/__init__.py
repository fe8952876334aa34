"""What happens after a crash: the recovery loop and its daemon, the audit, and the command line on top of everything.

    loop.py              begin here: claims the entries of processes that died, and finishes their changes
    daemon.py            runs the loop until a signal, and what belongs beside it; inside.py: the same inside a service
    status/              what is known of a store now: `tiered status`, the page and the metrics show it
    states.py            every state that a source may be in, and how well each is: the words of all views
    statistics/          how far recovery and the audit are, kept in the changelog
    feed/                a stream of changes: repeated and reordered, it still gives each reader the same view
    http/                the daemon's HTTP server and its page; metrics.py: the status as metrics
    prove/               tries on a user's services what a store rests on
    backup.py            copies an embedded store that is in use
    outages.py           which services do not answer
    logs.py              the two forms of a log line
    last_audit.py        what the last audit found
    dangling.py          looks again at what readers found lost; spot_check.py: looks for losses by itself
    mixed_writers.py     whether other software writes beside this one, and wipes its marks
    stray_uploads.py     ends uploads in parts whose process died before their entry was written
    entries.py           reads all entries of a changelog
    display.py           numbers, sizes, times and others' text, as people are shown them
    redaction.py         takes the names of objects out of texts
    typed_commands.py    commands to type, with what means the same store
    audit/               compares all blobs with all rows
    prove/               tries on a user's services what a store rests on
    sources/             a store and its audits as tables of Spark
    cli/                 the `tiered` command

The loop and the daemon know no backend: they are given a store's tiers and its changelog. `audit/` and `cli/` open them
by `tiered.open`. The log and the store know nothing of this folder.
"""

PART_OF = "tiered"
"""Tells this package from another's of the same name (`tiered/own.py`)."""
