"""Every interleaving of the feed's writer with the store, on paper: this searches small worlds exhaustively.

It needs only the standard library.

    python3 docs/protocol/feed_model.py [NAME ...] [-v]   the small scenarios, or the named ones; -v: counterexamples
    python3 docs/protocol/feed_model.py --all [--docs]    all of them, every guard knocked out; --docs: to feed-model.md

docs/feed-model.md says what is modelled, and what the search found. The exit code is 1 if our design is broken, if the
published order of steps is not, or if a guard can be left out without a violation. It is 2 if the command line is
wrong.

The search has shown that these rules of the first design were wrong or missing. The design has them now:

    doomed_by_row       a hint's clean-up deletes only what the row did not show when the writer read it
    own_epoch           the value that opens has the writer's own name in it, for the note accepts an equal value twice
    reopen              a writer that is not told of its commit repeats it, or opens anew; it never just goes on
    settle_before_gap   recovery finds what is garbage before it sets the gap
    gap_anew            each clean-up of recovery changes the checkpoint, also if the gap is set already
    last_bytes          the staged bytes of the last commit stay, although every sink has them
    journal_removed     what a sink has acknowledged is not entered in the journal again
    grace               an upload in a single request may land late; the feed waits for that as recovery does

    feed_state.py       what exists, and the guards
    feed_world.py       what each step does, and what is a violation
    feed_reader.py      what a reader makes of what the sink has
    feed_scenarios.py   who meets whom, and which scenario misses which guard
    search.py           breadth first, as for the protocol of the store
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.protocol.check import say, write_table
from docs.protocol.feed_scenarios import KNOCK_OUTS, SCENARIOS
from docs.protocol.feed_state import GUARDS, OURS, PUBLISHED
from docs.protocol.feed_world import World
from docs.protocol.search import Result, check

PAGE = Path(__file__).resolve().parents[1] / "feed-model.md"
SHOWN = ("doomed_by_row",)
"""The guards whose counterexamples are shown in the page."""


def check_scenario(name: str) -> dict[str, Result]:
    """Searches our design, and the published order where the scenario has a sink: elsewhere they are the same."""
    found = {"ours": check(World(SCENARIOS[name]))}
    if SCENARIOS[name].sink:
        found["published"] = check(World(SCENARIOS[name], PUBLISHED))
    return found


def check_without(guard: str) -> Result:
    """Searches without a guard, until the violation that the guard prevents is found."""
    knock_out = KNOCK_OUTS[guard]
    return check(World(SCENARIOS[knock_out.scenario], OURS.without(guard)), until=knock_out.kind)


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
    wrong, states, guard_rows, shown = 0, [], [], []
    for name in named or [name for name, scenario in SCENARIOS.items() if everything or scenario.small]:
        results = check_scenario(name)
        states.append(f"{name}: {results['ours'].states}")
        for order, result in results.items():
            wrong += bool(result.found) == (order == "ours" or _is_safe_anyway(name)) or not result.complete
            say(f"{name:34} {order:9} {result.states:7} states  {result}")
            if "-v" in flags:
                for trace in result.found.values():
                    say("    " + "\n    ".join(trace))
    for guard in GUARDS if everything else ():
        result, knock_out = check_without(guard), KNOCK_OUTS[guard]
        trace = result.found.get(knock_out.kind, [])
        wrong += not trace
        say(f"without {guard:20} {knock_out.scenario:26} {f'{knock_out.kind} in {len(trace) - 1} steps' if trace else 'no violation'}")
        guard_rows.append(f"| `{guard}` | {knock_out.protects} | {knock_out.scenario} | {knock_out.kind} | {len(trace) - 1} |")
        if guard in SHOWN:
            shown += [f"Without `{guard}`, {knock_out.protects.partition(': ')[2]}:", "", "```", *trace, "```", ""]
        if "-v" in flags:
            say("    " + "\n    ".join(trace))
    if "--docs" in flags:
        write_table(PAGE, "scenarios", textwrap.wrap("; ".join(states), 120))
        write_table(PAGE, "guards", ["| guard | what it protects | scenario | without it | steps |", "|---|---|---|---|---|", *guard_rows])
        write_table(PAGE, "counterexamples", shown[:-1])
    return 1 if wrong else 0


def _is_safe_anyway(name: str) -> bool:
    """Whether even the published order holds: where a single change makes the only transaction, no other can differ."""
    scenario = SCENARIOS[name]
    return len(scenario.changes) == 1 and scenario.indexed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
