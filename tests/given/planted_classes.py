"""A process whose table of classes has more rows: `python -m tests.given.planted_classes`.

It reads the source of the table, adds `PLANTED` to it, and only then imports the rest of the audit. It prints what
`told_of_classes` tells of these classes, as JSON.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

from tests.given.repository import ROOT

TABLE = "recovery.audit.finding_classes"
END_OF_ROWS = "\n\n\ndef _where("
PLANTED = {
    "counted": "",
    "plain": 'Consequences("WHY")',
    "loss": 'Consequences("WHY", is_loss=True)',
    "lost_blob": 'Consequences("WHY", is_loss=True, of=Subject.LOST_BLOB)',
    "doubt": 'Consequences("WHY", is_doubt=True)',
    "accused": 'Consequences("WHY", is_accused=True)',
    "orphan": 'Consequences("WHY", is_orphan=True, is_accused=True, is_reclaimable=True)',
    "in_use": 'Consequences("WHY", is_in_use=True)',
    "reclaimable": 'Consequences("WHY", is_reclaimable=True)',
    "row": 'Consequences("WHY", of=Subject.ROW)',
}
"""By the name of each class, without `planted_`: what follows from it."""


def rows() -> str:
    return "".join(
        f'\n    PLANTED_{name.upper()} = "planted_{name}", "its content is {name}", {then or None}' for name, then in PLANTED.items()
    )


def plant() -> None:
    """Puts the table with the rows where the audit imports it from."""
    path = ROOT / "recovery" / "audit" / "finding_classes.py"
    source = path.read_text("utf-8")
    assert TABLE not in sys.modules and source.count(END_OF_ROWS) == 1
    module = module_from_spec(ModuleSpec(TABLE, None, origin=str(path)))
    sys.modules[TABLE] = module
    exec(compile(source.replace(END_OF_ROWS, f"{rows()}{END_OF_ROWS}"), str(path), "exec"), module.__dict__)


if __name__ == "__main__":
    plant()
    json.dump(import_module("tests.given.told_of_classes").told(), sys.stdout)
