"""Audits ranges in worker processes of this machine, without Java.

    run (a thread) --number--> worker: carry_out(job, number) --PartResult--> run
                               `-> if its connection to us ends, the worker ends itself

Workers are fresh interpreters, never forks, because the clients of Google's services do not survive a fork. A worker
gets one range at a time, over a socket pair that only the driver and this worker hold. It prints nothing. A Ctrl-C at
the terminal does not reach it, because only the driver decides when to stop.

*Crash* of a worker (killed, out of memory): a new worker tries its range again. After `DEATHS_MAX` crashes the range
fails. *Crash* of the driver, even by kill -9: the sockets close, and every worker ends at once. *Failure* of a range is
reported in its outcome.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from multiprocessing.connection import Connection, Pipe, wait
from queue import SimpleQueue

from changelog.base.errors import UnavailableError
from recovery.audit.running.jobs import Job, PartResult, carry_out, collect_less

Work = Callable[[Job, int], PartResult]
"""What a worker does with a range. It must be a function of a module, so that another process can import it by name."""

DEATHS_MAX = 3
START = "from recovery.audit.running.local import serve; serve()"


class LocalEngine:
    """The `Engine` that runs on this machine. `processes`: how many workers; None: one for each core."""

    def __init__(self, processes: int | None = None, work: Work = carry_out) -> None:
        self.slots = processes or os.cpu_count() or 1
        self.name = f"local, {self.slots} process{'es' if self.slots > 1 else ''}"
        self.versions: Mapping[str, str] = {"pyarrow": version("pyarrow")}
        self.elsewhere = False
        self._work = work
        self._stopped, self._stop = Pipe(duplex=False)

    def stop(self) -> None:
        """Stops for good and ends the workers. Ranges that are finished stay done. The others are not done."""
        with suppress(OSError):
            self._stop.send(None)

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
        """Audits the ranges of these numbers, and yields each outcome. It blocks until the next one.

        Raises `UnavailableError` if no worker process can be started. The ranges whose files exist are done.
        """
        waiting = deque(numbers)
        deaths: Counter[int] = Counter()
        workers: dict[Connection, _AuditWorker] = {}
        try:
            while waiting or workers:
                while waiting and len(workers) < self.slots:
                    worker = _AuditWorker.start(self._work, job)
                    workers[worker.connection] = worker
                    worker.give(waiting.popleft())
                ready = wait([self._stopped, *workers])
                if self._stopped in ready:
                    return
                for connection in ready:
                    assert isinstance(connection, Connection)
                    worker = workers[connection]
                    outcome = worker.answer()
                    if outcome is not None:
                        if waiting:
                            worker.give(waiting.popleft())
                        else:
                            workers.pop(connection).end()
                        yield outcome
                        continue
                    how = workers.pop(connection).end()
                    deaths[worker.number] += 1
                    if deaths[worker.number] < DEATHS_MAX:
                        waiting.append(worker.number)
                    else:
                        yield PartResult(worker.number, error=_died(how))
        finally:
            for worker in workers.values():
                worker.end()


class _AuditWorker:
    """One worker process, and the number of the range that it has been given."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        self.connection = connection
        self.number = -1
        self._process = process

    @classmethod
    def start(cls, work: Work, job: Job) -> _AuditWorker:
        ours, theirs = Pipe()
        # Pass the import paths of this process on, as absolute paths: they must not depend on the directory it was
        # started in.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)}
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", START, str(theirs.fileno())], env=environment, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise UnavailableError(f"no worker process can be started ({error.strerror}): give fewer processes") from error
        finally:
            theirs.close()
        worker = cls(process, ours)
        with suppress(OSError):  # the worker died already; `answer` will notice
            ours.send_bytes(pickle.dumps((work, job)))
        return worker

    def give(self, number: int) -> None:
        self.number = number
        with suppress(OSError):
            self.connection.send(number)

    def answer(self) -> PartResult | None:
        """Returns the outcome of the range, or None if the worker died."""
        try:
            outcome = self.connection.recv()
        except (OSError, EOFError):
            return None
        assert isinstance(outcome, PartResult)
        return outcome

    def end(self) -> int:
        """Kills the worker if it is alive, which is safe at any moment, and returns its exit code.

        A negative exit code is the number of the signal that killed it.
        """
        self.connection.close()
        self._process.kill()
        return self._process.wait()


def _died(code: int) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"its worker process {how}, {DEATHS_MAX} times: if memory is short, use fewer processes"


# --- in the worker ---------------------------------------------------------------------------------


def serve() -> None:
    """The main function of a worker.

    It receives the work and the job, then numbers of ranges, until the connection ends.
    """
    connection = Connection(int(sys.argv[1]))
    work, job = pickle.loads(connection.recv_bytes())
    collect_less()
    numbers: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, numbers), daemon=True).start()
    while True:
        connection.send(work(job, numbers.get()))


def _receive(connection: Connection, numbers: SimpleQueue[int]) -> None:
    """Receives in a thread of its own, so that the worker notices the end of the driver while it works."""
    try:
        while True:
            numbers.put(connection.recv())
    except (OSError, EOFError):
        os._exit(0)
