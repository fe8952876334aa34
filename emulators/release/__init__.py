"""The steps of a release, each a command of its own, up to what is the owner's: `make release`, `.ci/release`.

    steps.py       the steps, as a list: a name, a command, minutes, and what it proves. A new proof is a line there
    running.py     runs steps one after another, shows what they print, and keeps what they say was not proved
    passed.py      what passed in an earlier run of this commit, so that a run goes on
    summary.py     the last words: what was built, what was proved by which command, what was not
    owner.py       what only the owner can decide, and which commands upload
    checkout.py    the commit that is released: clean, not yet released, with its notes
    build.py       the wheel and the source distribution, built in three ways that must give the same bytes
    metadata.py    what an index would show of them
    bill.py        the bill of materials: what the wheel brings with each extra
    workflow.py    the workflow of a public forge, looked at by actionlint
    tools.py       the packages that a release needs, in an environment of their own

`make release ARGS=--list` shows the steps. Nothing here uploads, sets a tag or changes a file that git knows.
"""
