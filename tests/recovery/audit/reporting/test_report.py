"""The page renders whatever a manifest holds.

It keeps names in their place, asks the network for nothing, and says what it cuts.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from recovery import states
from recovery.audit.finding import AGES, OTHERS, USECASES_MAX, Finding
from recovery.audit.finding_classes import FINDINGS, SIZED, FindingClass
from recovery.audit.manifest import Bounds, Cutoff, Failure, Manifest, ManifestStuckEntry, ManifestTally, Prefix, Verify
from recovery.audit.reporting import report, run_verdict
from recovery.audit.reporting.report import DOUBTS_MAX, DRAWN_MAX, LOST_MAX, NAMES_MAX, NOTES_MAX, RANGES_MAX, USECASES_SHOWN, render
from recovery.audit.reporting.since import EarlierRun

HOSTILE = "<script>alert(1)</script>\"'&amp;{{ 7*7 }}{% raw %}\u202egpj\x1b[2J\n"


def ended(**more: object) -> Manifest:
    known = {
        "run": "r", "inputs": {"bucket": "b"}, "log_is_durable": True, "cutoff": Cutoff(as_of_ns=0, grace_s=86_400), "started_ns": 0,
        "ended_ns": 1, "ranges": (Bounds(start="", end=None),), "names_by_range": (3,), "names": 3, "redirects": 2, "complete": True,
    }  # fmt: skip
    return Manifest.model_validate(known | more)


def lost(name: str = "media/objects/a/1", **more: object) -> Finding:
    known = {"object": "media/objects/a", "revision": None, "size": None, "created_ns": None, "deadline_ns": None, "generation": None,
             "detail": "", "listed_ns": 0, "logged_ns": 0, "scanned_ns": 0, "confirmed_ns": 0}  # fmt: skip
    return Finding(class_=FindingClass.DANGLING, name=name, **{**known, **more})  # type: ignore[arg-type]


def found(kind: FindingClass, number: int, **more: object) -> Finding:
    return lost(f"{kind}-{number}.", **more)._replace(class_=kind)


class Page(HTMLParser):
    """What a browser makes of it: tags with attributes, text, and text by enclosing tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.code: list[str] = []
        self._inside: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "pre":
            self.code.append("")
        if tag not in {"meta"}:
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag, f"{tag} closes what is not open"

    def handle_data(self, data: str) -> None:
        self.text += data
        if "pre" in self._inside:
            self.code[-1] += data

    def said(self) -> str:
        assert self._inside == [], "all is closed"
        return " ".join(self.text.split())


def check_harmless(page: str) -> Page:
    """No script, no network, nothing that steers; and it is closed properly."""
    seen = Page(page)
    seen.said()
    for tag, attributes in seen.tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "a", "base", "form"}, tag
        assert not {name for name in attributes if name in {"src", "href", "action", "srcset"} or name.startswith("on")}, attributes
    assert not re.search(r"url\(|@import|https?://", page.partition("</style>")[0])
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)
    return seen


def full(**more: object) -> Manifest:
    totals = {kind: ManifestTally(number=2, size=1 << 30) for kind in FindingClass}
    return ended(**{
        "totals": totals, "usecases": {"media": totals},
        "ages": {FindingClass.ORPHAN: (0, 1, 2, 0, 0, 0, 0), FindingClass.LEGACY_ORPHAN: (0, 0, 2)},
        "prefixes": (Prefix(prefix="media/", number=4, size=5),), **more,
    })  # fmt: skip


def test_a_full_page_is_harmless_and_says_first_what_the_run_comes_to() -> None:
    seen = check_harmless(render(full(), [lost()]))
    said = seen.said()
    first = said.index("DATA LOSS: 2 dangling tombstones name blobs that are gone and 2 blobs that live tombstones name cannot be read.")
    besides = said.index("Their objects cannot be read. Besides, 4 orphans: 2.0 GiB, about $0.04 a month.")
    assert first < besides < said.index("What was found")
    assert "an assumed 0.020 US dollars for a GiB and month (GCS Standard in one region; --price says another)" in said
    assert "The audit deletes nothing." in said and "lost data" in said
    assert dict(seen.tags)["body"]["class"] == "loss"


def test_each_place_of_a_name_escapes_it() -> None:
    manifest = full(
        run=HOSTILE, inputs={HOSTILE: HOSTILE}, usecases={HOSTILE: {FindingClass.ORPHAN: ManifestTally(number=1)}}, doubts=(HOSTILE,),
        notes=(HOSTILE,),
        prefixes=(Prefix(prefix=HOSTILE, number=1, size=1),), ranges=(Bounds(start=HOSTILE, end=HOSTILE),), complete=False,
        names_by_range=(None,), failures=(Failure(range=0, error=HOSTILE),), engine=HOSTILE, versions={HOSTILE: HOSTILE},
    )  # fmt: skip
    page = render(manifest, [lost(HOSTILE, object=HOSTILE, detail=HOSTILE)], directory=f"/runs/{HOSTILE}")
    assert check_harmless(page).text.count("<script>alert(1)</script>") >= 15


def test_commands_name_the_run_and_can_be_copied() -> None:
    seen = Page(render(full(complete=False, names_by_range=(None,)), [lost("media/objects/a b/1")], directory="/runs/a b"))
    assert "tiered audit run --to '/runs/a b'" in seen.code
    assert "tiered audit show 'media/objects/a b/1' --from '/runs/a b'" in seen.code
    assert 'spark.read.parquet("/runs/a b/findings").groupBy("class").count().show()' in seen.code
    assert "tiered audit show NAME --from RUN" in Page(render(full(), [])).code


@pytest.mark.parametrize(("name", "argument"), [
    ("m/objects/k/r", "m/objects/k/r"), ("m/objects/$(rm -rf ~)", "'m/objects/$(rm -rf ~)'"), ("m/objects/it's", "'m/objects/it'\"'\"'s'"),
    ("m/objects/\n", "NAME"), ("m/objects/\u202e", "NAME"), ("m/objects/" + "k" * 200, "NAME"), ("-rf/objects/k", "NAME"),
])  # fmt: skip
def test_command_to_be_copied_carries_out_nothing_of_a_name(name: str, argument: str) -> None:
    commands = Page(render(ended(totals={FindingClass.DANGLING: ManifestTally(number=1)}), [lost(name)])).code
    assert [code for code in commands if "audit show" in code] == [f"tiered audit show {argument} --from RUN"]


def test_what_is_cut_says_so() -> None:
    totals = {FindingClass.DANGLING: ManifestTally(number=LOST_MAX + 500)}
    bounds = tuple(Bounds(start=str(number), end=None) for number in range(RANGES_MAX + 7))
    manifest = full(
        totals=totals, usecases={f"u{number}": totals for number in range(USECASES_SHOWN + 3)}, ranges=bounds, complete=False,
        names_by_range=(None,) * len(bounds), notes=("note",) * (NOTES_MAX + 1),
        failures=tuple(Failure(range=number, error=f"fault-{number}.") for number in range(len(bounds))),
    )  # fmt: skip
    page = render(manifest, [lost(f"gone-{number}.") for number in range(LOST_MAX + 2)])
    said = Page(page).said()
    assert "3 more usecases in manifest.json" in said and "The first 100 of 107." in said and "1 more note in manifest.json" in said
    assert "The first 1,000 of 1,500; the others are in findings/" in said
    assert f"gone-{LOST_MAX - 1}." in said and f"gone-{LOST_MAX}." not in said
    assert f"ault-{RANGES_MAX - 1}." in said and f"ault-{RANGES_MAX}." not in said
    short = Page(render(full(prefixes=(Prefix(prefix="media/", number=4, size=2 << 30),)), [
        found(kind, number) for kind in FINDINGS for number in range(2)
    ])).said()  # fmt: skip
    assert "The first" not in short and "more" not in short.split("By usecase")[1].split("Names of what was found")[0]


def test_empty_blobs_have_no_bytes_and_those_of_what_is_gone_are_not_known() -> None:
    totals = {each: ManifestTally(number=3) for each in FindingClass}
    said = Page(render(full(totals=totals, usecases={"u": {FindingClass.ORPHAN: ManifestTally(number=3)}}), [])).said()
    for each in FindingClass:
        words = each.value.replace("_", " ")
        assert (f"{words}30 B$0{each.meaning}" in said) is (each in SIZED), each
    assert "u30 B$0" in said and FindingClass.ORPHAN in SIZED and FindingClass.REFERENCED in SIZED
    assert not {FindingClass.DANGLING, FindingClass.CORRUPT_ROW, FindingClass.FOREIGN, FindingClass.CORRUPT_BLOB} & {*SIZED}


def test_doubts_that_are_many_are_cut_and_the_page_says_so() -> None:
    manifest = full(complete=False, doubts=tuple(f"doubt-{number}." for number in range(DOUBTS_MAX + 7)))
    said = Page(render(manifest, [])).said().split("Why it is incomplete")[1]
    assert f"oubt-{DOUBTS_MAX - 1}." in said and f"oubt-{DOUBTS_MAX}." not in said and "7 more doubts in manifest.json" in said
    assert "more doubt" not in Page(render(full(complete=False, doubts=("one",)), [])).said()


def test_orphans_outside_of_the_prefixes_that_are_shown_are_counted() -> None:
    """A run keeps the prefixes with the most bytes only."""
    def said(number: int, size: int) -> str:
        manifest = full(
            totals={FindingClass.ORPHAN: ManifestTally(number=9, size=90)}, prefixes=(Prefix(prefix="media/", number=number, size=size),)
        )
        return Page(render(manifest, [])).said().split("Where the orphans are")[1].split("By usecase")[0]

    assert "The one prefix with the most bytes. The other 5 orphans (50 B) lie elsewhere." in said(4, 40)
    assert "lie elsewhere" not in said(9, 90)


def test_usecases_that_were_counted_together_are_no_usecase_and_the_page_says_so() -> None:
    orphans = {FindingClass.ORPHAN: ManifestTally(number=1, size=1)}
    usecases = {**{f"u{number:04}": orphans for number in range(USECASES_MAX)}, OTHERS: orphans}
    said = Page(render(full(usecases=usecases), [])).said()
    together = "A run counts 1,000 usecases by name. The others were counted together, as (others)."
    assert said.count(together) == 2, "where they are drawn, and where they are listed"
    assert "986 usecases with fewer bytes are not drawn" not in said and "951 more usecases in manifest.json" not in said
    assert "lines with fewer bytes are not drawn" in said and "951 more lines in manifest.json" in said
    assert together not in Page(render(full(), [])).said()


@pytest.mark.parametrize("kind", sorted(set(FINDINGS) - {FindingClass.DANGLING, FindingClass.DESTROYED}))
def test_names_of_every_class_are_listed_and_a_query_finds_those_that_are_left_out(kind: FindingClass) -> None:
    manifest = full(totals={kind: ManifestTally(number=NAMES_MAX + 5, size=99)})
    findings = [found(kind, number, size=number, created_ns=0) for number in range(NAMES_MAX + 1)]
    seen = check_harmless(render(manifest, findings, directory="/runs/it's"))
    said = seen.said()
    assert f"{kind}-{NAMES_MAX - 1}." in said and f"{kind}-{NAMES_MAX}." not in said
    assert f"The first {NAMES_MAX} of {NAMES_MAX + 5}. All of them, in DuckDB:" in said
    assert (
        f"SELECT name, object, size, created, detail FROM read_parquet('/runs/it''s/findings/*.parquet') WHERE class = '{kind}'"
        " ORDER BY size DESC;"
    ) in seen.code
    few = Page(render(full(totals={kind: ManifestTally(number=1)}), [found(kind, 0)]))
    assert f"{kind}-0." in few.said() and not any("WHERE class" in code for code in few.code)


def test_blobs_that_cannot_be_read_are_shown_as_loss_with_their_size() -> None:
    manifest = full(totals={FindingClass.DESTROYED: ManifestTally(number=1, size=2048), FindingClass.DANGLING: ManifestTally(number=1)})
    said = Page(render(manifest, [lost(), found(FindingClass.DESTROYED, 7, size=2048, detail="it does not match its checksum")])).said()
    part = said.split("Live objects that are lost")[1].split("How old the blobs are")[0]
    assert "Blob that cannot be read" in part and "destroyed-7." in part and "2.0 KiB" in part and "its checksum" in part
    assert part.index("Blob that is gone") < part.index("Blob that cannot be read")


def test_bytes_are_drawn_by_age_and_by_usecase() -> None:
    manifest = full(
        ages={FindingClass.ORPHAN: (0, 4, 1), FindingClass.OVERDUE: (0, 0, 0, 0, 0, 0, 3)},
        age_sizes={FindingClass.ORPHAN: (0, 1024, 4096), FindingClass.OVERDUE: (0, 0, 0, 0, 0, 0, 2048)},
        usecases={
            "big": {FindingClass.REFERENCED: ManifestTally(number=1, size=600), FindingClass.ORPHAN: ManifestTally(number=1, size=300),
                    FindingClass.EXPIRED: ManifestTally(number=1, size=100)},
            "small": {FindingClass.OVERDUE: ManifestTally(number=9, size=500)}, "none": {FindingClass.DANGLING: ManifestTally(number=1)},
        },
    )  # fmt: skip
    bars = {bar.label: (bar.number, bar.size, bar.percent) for bar in report._ages(manifest)}
    assert bars["1 h to 1 d"] == (4, 1024, 25.0) and bars["1 d to 7 d"] == (1, 4096, 100.0) and bars["over 1 y"] == (3, 2048, 50.0)
    assert [(each.name, each.percents) for each in report._stacks(manifest.usecases)] == [
        ("big", (60.0, 10.0, 30.0)), ("small", (0.0, 0.0, 50.0)),
    ]  # fmt: skip
    said = check_harmless(render(manifest, [])).said()
    assert "4.0 KiB in 1 blob" in said and "1000 B, 300 B to reclaim" in said
    many = {f"u{number:02}": {FindingClass.REFERENCED: ManifestTally(number=1, size=number + 1)} for number in range(DRAWN_MAX + 2)}
    assert "2 usecases with fewer bytes are not drawn" in Page(render(full(usecases=many), [])).said()


def test_what_changed_since_an_earlier_run_is_told_with_a_query_for_the_names() -> None:
    both = {FindingClass.REFERENCED: ManifestTally(number=9)}
    before = full(totals=both | {FindingClass.ORPHAN: ManifestTally(number=5, size=2048), FindingClass.FOREIGN: ManifestTally(number=1)})
    now = full(totals=both | {FindingClass.ORPHAN: ManifestTally(number=2, size=1024), FindingClass.DANGLING: ManifestTally(number=3)})
    seen = check_harmless(render(now, [], directory="/runs/2", earlier=EarlierRun(f"/runs/{HOSTILE}", before)))
    part = seen.said().split("What changed since the run of")[1].split("Live objects that are lost")[0]
    assert all(row in part for row in ("dangling03+3", "orphan52-3-1.0 KiB", "foreign10-1"))
    assert "dangling03+3±" not in part and "referenced" not in part
    assert part.index("dangling") < part.index("orphan") < part.index("foreign")
    assert any(code.startswith("SELECT class, name FROM read_parquet('/runs/2/findings/*.parquet') EXCEPT") for code in seen.code)
    same = Page(render(now, [], earlier=EarlierRun("/runs/1", now.model_copy(update={"complete": False})))).said()
    assert "No class has another number" in same and "That run is not complete" in same
    assert "What changed since" not in Page(render(now, [])).said() and "other payloads" not in same
    verified = now.model_copy(update={"verify": Verify()})
    assert "It read other payloads than this run did" in Page(render(verified, [], earlier=EarlierRun("/runs/1", now))).said()


def test_entries_that_are_stuck_are_shown_and_also_that_nobody_knows() -> None:
    entry = ManifestStuckEntry(key="~log/1", object=HOSTILE, error=HOSTILE, since_ms=0)
    seen = check_harmless(render(full(stuck=3, stuck_entries=(entry, entry.model_copy(update={"object": None}))), []))
    assert "3 entries. A blob that such an entry names is never called an orphan" in seen.said()
    assert "The first 2 are shown." in seen.said() and "~log/1" in seen.said() and "1970-01-01" in seen.said()
    assert "tiered log list --stuck" in seen.code
    assert "Whether entries of the changelog are stuck is not known" in Page(render(full(), [])).said()
    assert "stuck" not in Page(render(full(stuck=0), [])).said()


def test_next_commands_are_those_that_fit_what_was_found() -> None:
    def commands(manifest: Manifest) -> list[str]:
        return Page(render(manifest, [], directory="/runs/a b")).code

    delete = "tiered audit delete '/runs/a b' --class orphan"
    assert delete in commands(full()) and "tiered audit restore '/runs/a b'" in commands(full())
    assert delete not in commands(full(complete=False)) and delete not in commands(ended())
    gone, broken = (
        Page(render(full(totals={kind: ManifestTally(number=1)}), [])).said() for kind in (FindingClass.DANGLING, FindingClass.DESTROYED)
    )
    assert "how to restore what the bucket still keeps" in gone and "how to restore" not in broken
    restore = "tiered audit restore '/runs/a b' --class dangling"
    dangling = {FindingClass.DANGLING: ManifestTally(number=1)}
    assert restore in commands(full(totals=dangling)) and restore not in commands(full(totals=dangling, inputs={"directory": "/store"}))
    overdue = {FindingClass.OVERDUE: ManifestTally(number=1)}
    assert "tiered check" in commands(full(totals=overdue))
    assert "tiered recover" in commands(full(totals=overdue, inputs={"directory": "/store"}))
    verify = "tiered audit run --verify --verify-share 0.1"
    assert verify in commands(ended()) and verify not in commands(ended(verify={"share": 1}))


def test_commands_mean_the_same_store_and_the_same_audit() -> None:
    """Whoever copies one has typed --directory or --config before, and may have no Java."""
    def commands(manifest: Manifest) -> list[str]:
        return Page(render(manifest, [], directory="/run", tiered=("tiered", "-d", "/my store"))).code

    assert "tiered -d '/my store' audit delete /run --class orphan" in commands(full())
    unfinished = full(complete=False, names_by_range=(None,), engine="spark 4.3.0, local[2,4]; local, 2 processes")
    assert "tiered -d '/my store' audit run --engine local --to /run" in commands(unfinished)
    assert "tiered -d '/my store' audit run --to /run" in commands(unfinished.model_copy(update={"engine": "spark 4.3.0, local[2,4]"}))
    scoped = ended(scope="a b/", engine="local, 2 processes")
    assert "tiered -d '/my store' audit run --engine local --prefix 'a b/' --verify --verify-share 0.1" in commands(scoped)


def test_page_says_what_was_not_looked_at_and_what_a_bucket_keeps() -> None:
    said = Page(render(ended(scope="media/", kept={"noncurrent": None, "soft_deleted": ManifestTally(number=3, size=2048)}), [])).said()
    assert "Names that do not begin with media/." in said and "Payloads: none was read." in said and "Upload sessions that are open" in said
    assert "none found; no payload was read" in said
    assert "noncurrent not known; soft-deleted 3 generations, 2.0 KiB, less than $0.01 a month." in said
    assert "no data loss" not in said and "No data is lost" not in said


def test_incomplete_run_never_calls_itself_clean() -> None:
    said = Page(render(ended(complete=False, doubts=("it broke",)), [])).said()
    assert "Incomplete: it broke." in said and "Nothing may be deleted" in said
    assert "no data loss" not in said and "nothing to reclaim" not in said


def test_each_kind_of_a_usecase_is_in_one_column() -> None:
    counted = {kind: ManifestTally(number=2**place, size=3**place) for place, kind in enumerate(FindingClass)}
    line = report._Usecase.of("media", counted)
    parts = [line.in_use, line.passing, line.orphans, line.lost, line.others]
    assert sum(each.number for each in parts) == 2 ** len(FindingClass) - 1
    assert sum(each.size for each in parts) == sum(each.size for each in counted.values())


def test_page_asks_for_every_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / report.TEMPLATE).write_text("{{ unheard_of }}")
    monkeypatch.setattr(report, "files", lambda _: tmp_path)
    with pytest.raises(UndefinedError, match="unheard_of"):
        render(full(), [])


TEXT = st.text(max_size=30)
COUNTED = st.builds(ManifestTally, number=st.integers(0, 10**17), size=st.integers(0, 10**17))
KINDS = st.dictionaries(st.sampled_from(list(FindingClass)), COUNTED)
BOUNDS = st.builds(Bounds, start=TEXT, end=st.none() | TEXT)
TIMES = st.integers(0, 2**63 - 1)
STUCK = st.builds(ManifestStuckEntry, key=TEXT, object=st.none() | TEXT, error=TEXT, since_ms=st.none() | TIMES)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    ranges = draw(st.lists(BOUNDS, min_size=1, max_size=4))
    number = st.integers(0, len(ranges) - 1)
    return ended(
        run=draw(TEXT), inputs=draw(st.dictionaries(TEXT, TEXT, max_size=3)), log_is_durable=draw(st.booleans()),
        cutoff=Cutoff(as_of_ns=draw(TIMES), grace_s=draw(st.floats(0, 1e12))), ranges=ranges, engine=draw(TEXT),
        ended_ns=draw(st.none() | TIMES),
        work_s=draw(st.floats(0, 1e12)), names=draw(st.integers(0, 10**18)), redirects=draw(st.integers(0, 10**18)),
        complete=draw(st.booleans()), doubts=draw(st.lists(TEXT, max_size=2)), notes=draw(st.lists(TEXT, max_size=2)),
        failures=draw(st.lists(st.builds(Failure, range=number, error=TEXT), max_size=2)), totals=draw(KINDS),
        names_by_range=draw(st.lists(st.none() | st.integers(0, 10**12), max_size=len(ranges))),
        usecases=draw(st.dictionaries(TEXT, KINDS, max_size=3)),
        scope=draw(TEXT), verify=draw(st.none() | st.just({"share": 0.5})), stuck=draw(st.none() | st.integers(0, 5)),
        stuck_entries=draw(st.lists(STUCK, max_size=2)),
        kept=draw(st.dictionaries(TEXT, st.none() | COUNTED, max_size=2)),
        age_sizes=draw(st.dictionaries(st.sampled_from(list(FindingClass)), st.lists(st.integers(0, 10**18), max_size=len(AGES)))),
        ages=draw(st.dictionaries(st.sampled_from(list(FindingClass)), st.lists(st.integers(0, 10**12), max_size=len(AGES)))),
        prefixes=draw(st.lists(st.builds(Prefix, prefix=TEXT, number=st.integers(0, 10**12), size=st.integers(0, 10**18)), max_size=3)),
    )  # fmt: skip


@pytest.mark.night
@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(manifests(), st.lists(st.builds(lost, TEXT, deadline_ns=st.none() | TIMES), max_size=2), st.none() | TEXT, st.floats(0, 1e6),
       st.none() | st.builds(EarlierRun, TEXT, manifests()))
def test_any_manifest_renders_and_says_its_verdict(
    manifest: Manifest, findings: list[Finding], where: str | None, price: float, earlier: EarlierRun | None
) -> None:
    page = check_harmless(render(manifest, findings, price, where, earlier))
    told = run_verdict.verdict(manifest, price)
    assert " ".join(told.sentence.split()) in page.said()
    assert (told.state is states.AUDIT_CLEAN) == (manifest.complete and not any(
        count.number for kind, count in manifest.totals.items() if kind in FINDINGS))  # fmt: skip
