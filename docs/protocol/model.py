"""Every interleaving of the protocol, on paper: this searches small worlds exhaustively.

It needs only the standard library.

    python3 docs/protocol/model.py [NAME ...] [-v]    the small scenarios, or the named ones; -v: with counterexamples
    python3 docs/protocol/model.py --all [--docs]     all scenarios, every guard knocked out; --docs: to protocol.md

docs/protocol.md says what is modelled. There is one line for each scenario and protocol. The exit code is 1 if our
protocol is broken, if the published protocol is not, or if a guard can be left out without a violation. It is 2 if the
command line is wrong.

    state.py      what exists, and the guards        services.py   row, bucket, network, time
    writer.py     writers and the clean-up           others.py     recovery, readers, touches, askers, audit
    assembling.py multipart uploads                  scenarios.py  who meets whom
    leases.py     claims and heartbeats              appends.py    who appends to an upload
    search.py     breadth first, and the verdicts    readings.py   the order in which the audit reads
                                                     deleting.py   the deletion of orphans
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.protocol.scenarios import KNOCK_OUTS, SCENARIOS, world
from docs.protocol.search import Result, check
from docs.protocol.state import GUARDS, OURS, PUBLISHED

DOCS = Path(__file__).resolve().parents[1] / "protocol.md"
SHOWN = ("won_in_swap",)
"""The guards whose counterexamples are shown in the page."""
PUBLISHED_STATES_MAX = 100_000
"""The published protocol breaks long before this number of states. The search for further violations ends here."""


def check_scenario(name: str) -> dict[str, Result]:
    return {"ours": check(world(name, OURS)), "published": check(world(name, PUBLISHED), states_max=PUBLISHED_STATES_MAX)}


def check_without(guard: str) -> Result:
    """Searches without a guard, until the violation that the guard prevents is found."""
    knock_out = KNOCK_OUTS[guard]
    return check(world(knock_out.scenario, OURS.without(guard)), until=knock_out.kind)


def main(words: Sequence[str]) -> int:
    named, flags = [word for word in words if not word.startswith("-")], {word for word in words if word.startswith("-")}
    if unknown := [name for name in named if name not in SCENARIOS]:
        say(f"there is no scenario {unknown[0]!r}; choose among: {', '.join(SCENARIOS)}")
        return 2
    if unknown := sorted(flags - {"-v", "--all", "--docs"}):
        say(f"there is no option {unknown[0]}; use -v, --all or --docs")
        return 2
    everything = "--all" in flags
    if "--docs" in flags and (named or not everything):
        say("--docs goes with --all, and with no names")
        return 2
    chosen = named or [name for name, scenario in SCENARIOS.items() if everything or scenario.small]
    wrong, states, guard_rows, shown = 0, [], [], []
    for name in chosen:
        results = check_scenario(name)
        states.append(f"{name}: {results['ours'].states}")
        for protocol, result in results.items():
            wrong += bool(result.found) == (protocol == "ours") or (protocol == "ours" and not result.complete)
            say(f"{name:28} {protocol:6} {result.states:8} states  {result}")
            if "-v" in flags:
                for trace in result.found.values():
                    say("    " + "\n    ".join(trace))
    for guard in GUARDS if everything else ():
        result, knock_out = check_without(guard), KNOCK_OUTS[guard]
        trace = result.found.get(knock_out.kind, [])
        wrong += not trace
        say(f"without {guard:24} {knock_out.scenario:16} {f'{knock_out.kind} in {len(trace) - 1} steps' if trace else 'no violation'}")
        guard_rows.append(f"| `{guard}` | {knock_out.protects} | {knock_out.scenario} | {knock_out.kind} | {len(trace) - 1} |")
        if guard in SHOWN:
            shown += [f"Without `{guard}`, {knock_out.protects.partition(': ')[2]}:", "", "```", *trace, "```", ""]
        if "-v" in flags:
            say("    " + "\n    ".join(trace))
    if "--docs" in flags:
        _replace("scenarios", textwrap.wrap("; ".join(states), 120))
        _replace("guards", ["| guard | what it protects | scenario | without it | steps |", "|---|---|---|---|---|", *guard_rows])
        _replace("counterexamples", shown[:-1])
    return 1 if wrong else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _replace(table: str, lines: Sequence[str]) -> None:
    """Puts the lines between the page's markers of this table."""
    begin, end = f"<!-- {table} -->", f"<!-- end of {table} -->"
    text = DOCS.read_text()
    DOCS.write_text(re.sub(f"{begin}.*{end}", "\n".join([begin, "", *lines, "", end]), text, flags=re.DOTALL))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
