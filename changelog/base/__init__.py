"""What every other folder rests on: `runtime` (clocks, sleep, ids, randomness), `errors`, `tasks` and `threads`.

This folder imports nothing of the project. Begin with `errors.py`: it says what each kind of error lets a caller know.
"""
