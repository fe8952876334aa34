"""`tiered feed`. It prints what `recovery.feed` reads, and runs its writer.

    commands.py        begin here: the list of the commands, and their exit codes
    view.py            which records are there, at the frontier or at an earlier time
    check.py           whether the feed is sound, and what it still waits for
    convert.py         one file into another form
    follow.py          a directory: prints updates as progress makes them certain
    inputs.py          for these four: the files that are named, their schemas, and how a command ends
    receive.py         takes the files of a feed by HTTP PUT
    run.py             publishes the references of a store
    status.py          says how that goes
"""
