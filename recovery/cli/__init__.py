"""The `tiered` command. It knows the store and recovery; neither knows it.

    main.py            the door: prepares the streams, and says what to install where a library is missing
    app.py             begin here: the list of commands; exit_codes.py: how each ends
    objects.py         put, get, head, rm, ls; payloads.py moves their bytes to and from files and pipes
    progress.py        the bar that put and get show on a terminal, and the count of many objects
    syncing.py         sync, cp -r, import
    rewriting.py       cp, mv, update-metadata, set-expiry; arguments.py has what they share with objects.py
    status.py          status; status_lines.py writes its lines
    recover.py         the recovery daemon
    log_commands.py    log list, show, retry, abort; entries.py opens and prints what `recover` and `log` both need
    deployment.py      provision, check, hand-back; backup.py: backup
    prove.py           prove
    config.py          config show
    export.py          export objects, export verify, export table
    audit/             audit plan, run, show, delete, restore
    feed/              feed view, check, convert, follow, receive, run, status
    shared.py          for all commands: their options, their settings, how they end
    output.py          for all commands: JSON, tables and fields on stdout
"""
