"""The table of the audit's classes in docs/audit.md, from the code that judges.

    python -m tests.recovery.audit.class_table        after a change of `FindingClass`
"""

from __future__ import annotations

from pathlib import Path

from recovery.audit.finding_classes import FindingClass
from tests.given.repository import ROOT

PAGE = ROOT / "docs" / "audit.md"
BEGIN, END = "<!-- classes -->\n", "<!-- end of classes -->\n"


def table() -> str:
    """A line for each class: what it means, and what follows from it."""
    lines = [f"| `{kind}` | {kind.meaning} | {_follows(kind)} |\n" for kind in FindingClass]
    return "".join(["| class | what it is | |\n|---|---|---|\n", *lines])


def _follows(kind: FindingClass) -> str:
    if kind.finding is None:
        return "counted"
    return "**finding**, doubt" if kind.finding.is_doubt else "**finding**"


def written(page: str) -> str:
    """The page with the table of now between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN!r} or {END!r}")
    return f"{before}{begin}\n{table()}\n{end}{after}"


def main(page: Path = PAGE) -> None:
    page.write_text(written(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
