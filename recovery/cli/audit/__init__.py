"""`tiered audit`. It prints what `recovery.audit` finds; nothing is decided here.

    commands.py    begin here: plan, run, show, and their exit codes
    console.py     where they print, and how they show progress
    output.py      what plan and run print
    show.py        what show looks up and prints
    delete.py      delete and restore, and what they print
    options.py     the options of plan and run, and what they ask for together
    engines.py     the options for engines
    ending.py      exit codes
"""
