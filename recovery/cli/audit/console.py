"""Where the commands of an audit print, and how they show that work goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

LINE_EVERY_S = 30.0
"""Where stderr is no terminal, a line says after so many seconds how far the work is."""

P = TypeVar("P")


class PipedConsole(Console):
    def on_broken_pipe(self) -> None:
        """Raises what `guard` knows. The method of rich would end the program with exit code 1, which means findings.
        """
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    return PipedConsole(stderr=stderr, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def showing(unit: str, place: Callable[[P], tuple[int, int, float]], told: Callable[[P], str]) -> Iterator[Callable[[P], None]]:
    """Yields a function that shows progress: on a terminal as a bar, elsewhere as a line each `LINE_EVERY_S`.

    `unit`: what is counted. `place`: how many are done, of how many, after how many seconds. `told`: the rest in words.
    """
    said = console(stderr=True)
    if not said.is_terminal:
        yield _lines(said, unit, place, told)
        return
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TextColumn("{task.description}"))
    with Bar(*columns, console=said, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(progress: P) -> None:
            done, number, _ = place(progress)
            bar.update(task, total=number, completed=done, description=told(progress))

        yield show


def _lines(said: Console, unit: str, place: Callable[[P], tuple[int, int, float]], told: Callable[[P], str]) -> Callable[[P], None]:
    last_s = 0.0

    def show(progress: P) -> None:
        nonlocal last_s
        done, number, seconds = place(progress)
        if seconds - last_s >= LINE_EVERY_S:
            last_s = seconds
            with suppress(OSError):  # if nobody reads stderr, or it is full, the work goes on
                said.print(f"{done:,} of {number:,} {unit}  {told(progress)}")

    return show
