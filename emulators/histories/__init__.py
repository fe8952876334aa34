"""Histories of what callers called and were told, in a form that programs of others can judge.

    written.py       a call, and how calls are written; begin here
    judged.py        gives histories to Porcupine, through a program of ours in Go
    linearizable/    that program: a model of one object, and what it says of a history

A history is a file of JSON lines, one for each call, in any order:

    process      who called
    object       what was called for; objects are independent of one another
    operation    put, get or delete
    value        what a put writes, which no other put of the object does, or what a get has found; empty: nothing
    over         the condition of a write: what must be there; empty: nothing; null: it has no condition
    call         the moment before the call, in ns of a clock that all processes share
    return       the moment after which the call has no effect any more; null: it may have one at any later time
    answer       ok       a write took effect, at least until a write at the same time replaced it; a get has found that
                 no       it had no effect and never will
                 failed   its condition was false at a moment between both
                 unknown  it had its effect or not; nobody was told (the process died), or not even the store knew

Nothing here runs the product, or knows who writes histories.
"""
