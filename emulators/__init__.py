"""All that stands in for the real services, all that is run against it, and what makes a release. It is not shipped.

    world/         simulated rows, blobs, log, clock and network, their faults, and the checker of I1-I7
    simulation/    seeded runs of the store in that world; each can be replayed by its seed
    callers/       seeded callers of the library and the command, who use the API correctly and wrongly
    feed_worlds/   seeded worlds with the real writer of the change feed, its crashes and its guards
    feed/          a model of a change feed's writer that dies at any step, and what real readers make of it
    bigtable/      Google's emulator of Bigtable, one in memory, and a channel that can fail
    gcs/           an emulator of GCS
    s3/            servers of S3 that others wrote, and a proxy before one that fails
    demo/          real processes that are killed while they work (`python -m emulators demo`)
    histories/     what callers of real processes were told, judged by Porcupine, which others wrote
    postgres/      runs the real PostgreSQL: kills it, makes a standby of it, promotes that
    power/         records what real processes do to their files, and models what a power cut leaves of it
    changed_answers.py  a proxy that changes one answer of a server, and the table of changes
    lacking.py     what a machine lacks of all this, and how to get it
    go.py          finds, builds and runs programs that are written in Go
    ports.py       a port for a server that must be told one
    released.py    the last release, from the history: its source, its wheel, an interpreter that has it
    promises/      what the last release promised, beside what today's code keeps
    prove.py       services that this machine can run, proved: the reports that docs/services.md is made of
    up.py          both emulators, provisioned (`python -m emulators up`); up_servers.py: a PostgreSQL and an S3 server
    adapter_world.py    the real adapters on the emulators, with faults, judged like the simulated world
    server_world.py     the same of the adapters to PostgreSQL and S3

Begin with `__main__.py`, the two commands, or with `world/`. Nothing outside this package and the tests imports it:
the product does not know that it is simulated.
"""
