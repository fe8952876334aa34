"""Carries ranges out in worker processes of this machine, without Java.

    run (a thread) --number--> worker: carry_out(job, number) --Outcome--> run
                               `-> its connection to us ended: it ends itself

Workers are fresh interpreters, never forks: the clients of Google's services do not survive one. Each is told one range at a time, over a
socket pair that only the two of them hold. It prints nothing, and a Ctrl-C at the terminal does not reach it: what people are told, and
when to stop, is the driver's.

*Crash* of a worker (killed, out of memory) costs its range another try, by a new worker; after `DEATHS_MAX` the range fails.
*Crash* of the driver, even by kill -9: the sockets close, and every worker ends at once. *Failure* of a range is its outcome.
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
from importlib.abc import MetaPathFinder
from importlib.metadata import version
from multiprocessing.connection import Connection, Pipe, wait
from queue import SimpleQueue

from changelog.base.errors import UnavailableError
from recovery.audit.work import Job, Outcome, carry_out, collect_less

Work = Callable[[Job, int], Outcome]
"""What a worker does with a range: a function of a module, so that it can be named to another process."""

DEATHS_MAX = 3
START = "from recovery.audit.local import serve; serve()"


class LocalEngine:
    """`Engine` of this machine. `processes`: None, one for each core."""

    def __init__(self, processes: int | None = None, work: Work = carry_out) -> None:
        self.slots = processes or os.cpu_count() or 1
        self.name = f"local, {self.slots} process{'es' if self.slots > 1 else ''}"
        self.versions: Mapping[str, str] = {"pyarrow": version("pyarrow")}
        self._work = work
        self._stopped, self._stop = Pipe(duplex=False)

    def stop(self) -> None:
        """For good. Ends the workers, too: what they have not finished is not done, and what they have is."""
        with suppress(OSError):
            self._stop.send(None)

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[Outcome]:
        """Blocks between outcomes. `UnavailableError` where no process can be started."""
        waiting = deque(numbers)
        deaths: Counter[int] = Counter()
        workers: dict[Connection, _Worker] = {}
        try:
            while waiting or workers:
                while waiting and len(workers) < self.slots:
                    worker = _Worker.start(self._work, job)
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
                        yield Outcome(worker.number, error=_died(how))
        finally:
            for worker in workers.values():
                worker.end()


class _Worker:
    """One process, and the range it has been given."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        self.connection = connection
        self.number = -1
        self._process = process

    @classmethod
    def start(cls, work: Work, job: Job) -> _Worker:
        ours, theirs = Pipe()
        # The paths of this process, and none that depends on where it was started.
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
        with suppress(OSError):  # it died already, as is seen when its answer is awaited
            ours.send_bytes(pickle.dumps((work, job)))
        return worker

    def give(self, number: int) -> None:
        self.number = number
        with suppress(OSError):
            self.connection.send(number)

    def answer(self) -> Outcome | None:
        """None: it died."""
        try:
            outcome = self.connection.recv()
        except (OSError, EOFError):
            return None
        assert isinstance(outcome, Outcome)
        return outcome

    def end(self) -> int:
        """Kills it, if it lives, which is safe at any moment; its exit code. Negative: the signal that had killed it."""
        self.connection.close()
        self._process.kill()
        return self._process.wait()


def _died(code: int) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"its worker process {how}, {DEATHS_MAX} times: if memory is short, use fewer processes"


# --- in the worker ---------------------------------------------------------------------------------


def serve() -> None:
    """A worker's life: the work and the job, then numbers of ranges until the connection ends."""
    connection = Connection(int(sys.argv[1]))
    work, job = pickle.loads(connection.recv_bytes())
    sys.meta_path.insert(0, _WithoutPandas())
    collect_less()
    numbers: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, numbers), daemon=True).start()
    while True:
        connection.send(work(job, numbers.get()))


class _WithoutPandas(MetaPathFinder):
    """pyarrow imports pandas where it is installed, to ask it whether a list is one of its own: 40 MB of memory in each worker."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("a worker does without pandas", name=fullname)


def _receive(connection: Connection, numbers: SimpleQueue[int]) -> None:
    """Beside the work, so that the end of the driver is seen in the middle of it."""
    try:
        while True:
            numbers.put(connection.recv())
    except (OSError, EOFError):
        os._exit(0)
