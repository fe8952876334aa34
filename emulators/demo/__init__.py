"""The demo: real processes are killed in the middle of their work, and an independent check says whether anything was lost.

    command.py     begin here
    director.py    who is started, killed and stopped, and when; stage.py and troupe.py: where, and the processes
    writer.py, daemon.py     what the processes do
    check.py       compares what is stored with what callers were told; knows the formats, and runs no product code
    weather.py, relay.py, network.py     what happens to services and to the network
    unfenced.py    the naive protocol, for comparison
"""
