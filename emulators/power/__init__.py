"""Power cuts: what real processes do to their files is recorded, and a model of a disk says what may be left of it.

    recorder.c          is loaded into the processes, and records each write, each change of a name and each fsync
    recording.py        builds it, runs processes under it, and reads what it recorded
    disk.py             replays a record up to some moment, and leaves what a power cut at that moment may leave
    recorded_work.py    what the recorded processes do, and note
    judge.py            what must be true of a store after a power cut, by these notes

It follows "All File Systems Are Not Created Equal" (Pillai et al., OSDI 2014: ALICE) and CrashMonkey (Mohan et al.,
OSDI 2018). `tests/crash/test_power_cuts.py` has the scenes. Begin with `disk.py`.
"""
