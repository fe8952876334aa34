"""What the processes of the demo run, and what they note of it. Any of them may be killed at any moment.

    object_writer.py, daemon.py    a writer of objects, and a daemon of recovery
    product.py                     a command of the product
    load.py                        which operations a writer does
    journal.py                     what callers were told, written down by each process
    network.py                     delays the calls to a tier, and notes the writes that time out
    unfenced.py                    the published protocol, for comparison

Begin with object_writer.py.
"""
