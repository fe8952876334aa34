"""The `tiered` command. `main.py` is its door, `app.py` lists its commands, `shared.py` has the options and exit codes of them all."""
