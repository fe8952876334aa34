"""`SessionOfACode`: programs and commands of one code on a store, each in a process of its own, which may be killed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from emulators.demo.staging.interpreters import Interpreter
from emulators.demo.staging.troupe import environment
from tests.given.repository import ROOT

KILLED = -9
KILLS = """
import os, signal, sys, time

event, part, left, after = os.environ["KILLED_AT"].split(" ")
driver = int(os.environ.setdefault("KILLED_WITH", str(os.getpid())))
left = int(left)

def kill(told, arguments):
    global left
    if told == event and any(part in str(each) for each in arguments):
        left -= 1
        if left == 0:
            while not os.path.exists(after):
                time.sleep(0.01)
            os.kill(driver, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
"""
"""What each process of a command runs first: one that meets the moment kills the command, and itself."""


@dataclass(frozen=True, slots=True)
class FatalCall:
    """The `times`th `event` (an audit event of Python) of a path that contains `part`, counted in one process.

    `after`: not before this file is there.
    """

    event: str
    part: str
    times: int
    after: Path = ROOT


@dataclass(frozen=True)
class SessionOfACode:
    """Programs and commands of one code on the store of these settings."""

    interpreter: Interpreter
    config: Path

    def command(self, *arguments: str, expected: int = 0) -> str:
        return self.run("-m", "tiered", "--config", str(self.config), *arguments, expected=expected)

    def killed(self, moment: FatalCall, *arguments: str) -> None:
        """Runs a command, which is killed at this moment. Fails if it ends before."""
        hook = self.config.parent / "kills"
        hook.mkdir(exist_ok=True)
        (hook / "sitecustomize.py").write_text(KILLS)
        command = [self.interpreter.python, "-m", "tiered", "--config", str(self.config), *arguments]
        variables = environment(self.interpreter)
        killed_at = f"{moment.event} {moment.part} {moment.times} {moment.after}"
        variables |= {"PYTHONPATH": f"{hook}:{variables['PYTHONPATH']}", "KILLED_AT": killed_at}
        done = subprocess.run(command, cwd=self.config.parent, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == KILLED, (self.interpreter.code, arguments, done.stdout, done.stderr)

    def run(self, *arguments: str, expected: int = 0) -> str:
        """Runs the interpreter with these arguments. Returns what it says."""
        command, variables = [self.interpreter.python, *arguments], environment(self.interpreter)
        done = subprocess.run(command, cwd=self.config.parent, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == expected, (self.interpreter.code, arguments, done.stdout, done.stderr)
        return done.stdout
