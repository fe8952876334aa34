"""Today's ratios beside those of the last release: what got better, what got worse beyond its noise.

    make bench-compare                                   what `make bench` measured, beside benchmarks/baseline.json
    .venv/bin/python -m benchmarks.baseline --write      makes it the new baseline: a release does this, on purpose

A ratio is worse when its median lies outside the middle half of the old rounds, widened on both sides by both spreads
(a spread is the width of a middle half), or by `FLOOR` of the old median if that is more. A ratio of one round has no
known noise, and is not judged.

The exit code is 1 if something got worse, or is no longer measured by a part that ran.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from benchmarks.harness import KEPT, MEASURED, Figures, MeasuredPart, Ratio

BASELINE = Path(__file__).parent / "baseline.json"
FLOOR = 0.05
"""Two runs differ by so much for reasons that no round shows, such as where memory happens to lie."""

PARTS = TypeAdapter(dict[str, MeasuredPart])


class RatioVerdict(StrEnum):
    SAME = "same"
    BETTER = "better"
    WORSE = "WORSE"
    NOT_JUDGED = "one round, not judged"
    NEW = "new"
    GONE = "GONE"


@dataclass(frozen=True)
class BaselineLine:
    """One ratio, in the baseline and today. None: it is not there."""

    part: str
    table: str
    row: str
    column: str
    then: Ratio | None
    now: Ratio | None

    @property
    def verdict(self) -> RatioVerdict:
        if self.then is None:
            return RatioVerdict.NEW
        if self.now is None:
            return RatioVerdict.GONE
        return judged(self.then, self.now)


def judged(then: Ratio, now: Ratio) -> RatioVerdict:
    if 1 in (then.rounds, now.rounds):
        return RatioVerdict.NOT_JUDGED
    noise = max(then.high - then.low + now.high - now.low, FLOOR * then.middle)
    if then.low - noise <= now.middle <= then.high + noise:
        return RatioVerdict.SAME
    return RatioVerdict.BETTER if (now.middle > then.middle) is now.more_is_better else RatioVerdict.WORSE


def lines(part: str, then: MeasuredPart, now: MeasuredPart) -> list[BaselineLine]:
    """Returns a line for each cell that either of the runs has."""
    old, new = (
        {(table, row, column): cell
         for table, rows in each.compared.items() for row, cells in rows.items() for column, cell in cells.items()}
        for each in (then, now)
    )  # fmt: skip
    return [BaselineLine(part, *where, old.get(where), new.get(where)) for where in dict.fromkeys([*new, *old])]


def failed(line: BaselineLine, then: MeasuredPart, now: MeasuredPart) -> bool:
    """Whether the line makes the comparison fail. Rows are named after the size, so at another size some always go."""
    return line.verdict is RatioVerdict.WORSE or (line.verdict is RatioVerdict.GONE and then.size == now.size)


def warnings(part: str, then: MeasuredPart, now: MeasuredPart) -> list[str]:
    """Names what makes the comparison of a part less sure."""
    return [
        f"{part}: the baseline was measured {how} {old}, and this run {how} {new}; the comparison says less"
        for how, old, new in (
            ("at size", f"{then.size:g}", f"{now.size:g}"), ("on", then.machine, now.machine), ("with", then.versions, now.versions),
        ) if old != new
    ]  # fmt: skip


# --- files -----------------------------------------------------------------------------------------


def read_kept(directory: Path = KEPT) -> dict[str, MeasuredPart]:
    """Reads what the parts have kept. Raises `SystemExit` if there is nothing, or if a file is damaged."""
    found = {}
    for path in sorted(directory.glob("*.json")):
        try:
            found[path.stem] = MEASURED.validate_json(path.read_bytes())
        except ValidationError as error:
            raise SystemExit(f"{path} is damaged ({_first(error)}); remove it, and measure that part again") from None
    if not found:
        raise SystemExit(f"{directory} holds no figures; make bench measures them")
    return found


def read_baseline(path: Path = BASELINE) -> dict[str, MeasuredPart]:
    """Reads the baseline. Raises `SystemExit`, and says what to do, if the file is not there or damaged."""
    fix = f"restore it with 'git checkout {path.parent.name}/{path.name}', or write a new one with 'make bench BASELINE=1'"
    try:
        return PARTS.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise SystemExit(f"{path} is not there; {fix}") from None
    except ValidationError as error:
        raise SystemExit(f"{path} is no baseline of these benchmarks ({_first(error)}); {fix}") from None


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def write_baseline(parts: Mapping[str, MeasuredPart], path: Path = BASELINE) -> None:
    """Writes the baseline with a row on each line, so that a diff shows what changed."""
    told = []
    for part, measured in sorted(parts.items()):
        head = {name: value for name, value in asdict(measured).items() if name != "compared"}
        tables = [
            f"   {json.dumps(title)}: {{\n"
            + ",\n".join(f"    {json.dumps(row)}: {json.dumps(cells, default=_plain, ensure_ascii=False)}" for row, cells in rows.items())
            + "\n   }"
            for title, rows in measured.compared.items()
        ]
        fields = "".join(f"  {json.dumps(name)}: {json.dumps(value, default=str)},\n" for name, value in head.items())
        told.append(f" {json.dumps(part)}: {{\n{fields}  \"compared\": {{\n" + ",\n".join(tables) + "\n  }\n }")
    path.write_text("{\n" + ",\n".join(told) + "\n}\n", "utf-8")


def _plain(ratio: Ratio) -> dict[str, float]:
    rounded = {name: float(f"{getattr(ratio, name):.4g}") for name in ("middle", "low", "high")}
    return asdict(ratio) | rounded


# --- the comparison --------------------------------------------------------------------------------


def compare(then: Mapping[str, MeasuredPart], now: Mapping[str, MeasuredPart]) -> int:
    """Prints the comparison. Returns the exit code."""
    counts: Counter[RatioVerdict] = Counter()
    failures = []
    for part, measured in now.items():
        old = then.get(part)
        against = old or MeasuredPart(measured.date, measured.size, measured.load, measured.machine, measured.versions)
        found = lines(part, against, measured)
        counts.update(line.verdict for line in found)
        failures += [line for line in found if failed(line, against, measured)]
        if not found:
            continue
        when = "not in the baseline" if old is None else f"{old.date} -> {measured.date}, load {old.load:g} -> {measured.load:g}"
        print(f"\n{part}: {when}")
        for warning in warnings(part, against, measured):
            print(warning)
        for table in dict.fromkeys(line.table for line in found):
            rows = [[line.row, line.column, _shown(line.then), _shown(line.now), line.verdict] for line in found if line.table == table]
            Figures(table, ["", "", "baseline", "today", ""], rows).show()
    missing = sorted(part for part in set(then) - set(now) if then[part].compared)
    if missing:
        print(f"In the baseline, and not measured today: {', '.join(missing)}")
    print("\n" + ", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    for line in failures:
        where = ": ".join((line.part, line.table, line.row, line.column))
        print(f"{line.verdict}: {where}: {_shown(line.then)} -> {_shown(line.now) or 'not measured'}")
    return 1 if failures else 0


def _shown(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.shown} ({ratio.spread})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m benchmarks.baseline", description="Compares what was measured with the last release.")
    parser.add_argument("--write", action="store_true", help="make what was measured the new baseline, all of it")
    arguments = parser.parse_args()
    kept = read_kept()
    if arguments.write:
        write_baseline(kept)
        print(f"wrote into {BASELINE}: {', '.join(kept)}")
    else:
        sys.exit(compare(read_baseline(), kept))
