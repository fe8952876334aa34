"""What the last release promised, beside what today's code keeps: `python -m emulators.promises`.

    __main__.py      begin here: two source trees, each of which describes itself as a table
    breaks.py        what breaks a promise, and when that is allowed
    python_names.py  the rows of Python names, read by griffe
    surface.py       settings, commands, exit codes, metrics, log events, formats, packaging; run in each tree
    shapes.py        the JSON that commands print and the daemon serves; run in each tree

docs/promises.md is what users are told. Both sides are described from their own source tree: there is no copy of what
was promised that could rot. Knows nothing of what stored bytes look like: tests/conformance does.
"""
