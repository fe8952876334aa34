"""Today's code keeps what the last release promised; and faults that are planted into a whole tree are all found."""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

import pytest

from changelog.postgres.pool import SERVER_VERSION_MIN
from emulators.promises import surface
from emulators.promises.__main__ import main
from emulators.promises.breaks import UndescribedError
from emulators.promises.compared import described, refused
from emulators.released import NotReleasedError, released
from tests.given.repository import ROOT

PARTS = ("changelog", "tiered", "recovery", "docs", "tests/given", "pyproject.toml", "HISTORY.md")

PLANTED = [
    ("tiered/storage.py", "async def head(self, object_id: ObjectId, *, checksum: bool = False)",
     "async def head(self, object_id: ObjectId, *, checksum: bool = True)", "tiered.TieredStorage.head(checksum) has another default"),
    ("tiered/sync/storage.py", "def copy(\n        self, source: ObjectId, destination: ObjectId,",
     "def copy(\n        self, destination: ObjectId, source: ObjectId,",
     "tiered.sync.SyncTieredStorage.copy(destination) has another position|"
     "tiered.sync.SyncTieredStorage.copy(source) has another position"),
    ("tiered/asgi/__init__.py", "import LinkApp, create_app", "import LinkApp", "tiered.asgi.create_app was removed"),
    ("tiered/testing/fixtures.py", "def memory_store(", "def a_store(", "tiered.testing.fixtures.memory_store was removed"),
    ("tiered/__init__.py", "import Telemetry as Telemetry", "import Telemetry as _Telemetry", "tiered.Telemetry was removed"),
    ("tiered/errors.py", "class RateLimitedError(AtCapacityError)", "class RateLimitedError(TieredError)",
     "tiered.RateLimitedError is no longer a kind of AtCapacityError|tiered.RateLimitedError.retry_after_s was removed"),
    ("recovery/feed/files.py", "\ndef write(", "\nasync def write(", "recovery.feed.files.write is now awaited"),
    ("tiered/settings.py", "swap_deadline_s: Annotated[Seconds, TUNING] = 30.0", "swap_deadline_s: Annotated[Seconds, TUNING] = 31.0",
     "setting marks.swap_deadline_s is 31.0 by default, and was 30.0"),
    ("tiered/settings.py", "Field(ge=0, le=65_535)] | None", "Field(ge=0, le=9_999)] | None",
     "setting daemon.http_port ends at 9999, and ended at 65535"),
    ("tiered/settings.py", 'ENV_CONFIG = "TIERED_CONFIG"', 'ENV_CONFIG = "TIERED_FILE"', "variable TIERED_CONFIG was removed"),
    ("recovery/cli/objects.py", 'typer.Option("--raw"', 'typer.Option("--stored"', "command tiered get --raw was removed"),
    ("recovery/cli/objects.py", '"size": entry.size, "tier": entry.tier.value,', '"size": entry.tier.value,',
     "JSON of tiered ls: size has the type text, and had number|JSON of tiered ls: tier was removed"),
    ("recovery/status/as_json.py", '"seen_s_ago": each.seen_s_ago, ', "",
     "JSON of /status.json: daemons[].seen_s_ago was removed|JSON of tiered status: daemons[].seen_s_ago was removed"),
    ("tiered/telemetry/metrics.py", '"answer", ("won", "lost"))', '"answer", ("won",))',
     "metric tiered_claims_total: answer no longer has lost"),
    ("recovery/http/history.py", "\nVERSION = 1", "\nVERSION = 2", "format history of the status page has the value 2, and had 1"),
    ("docs/metrics.md", "| `tiered_daemons` | gauge", "| `tiered_daemons` | counter", "metric tiered_daemons has the type counter"),
    ("docs/logs.md", "| `recovery_failed` | warning | `id`, `object`", "| `recovery_failed` | warning | `id`",
     "event recovery_failed no longer has object"),
    ("docs/failures.md", "**Exit code:** 7", "**Exit code:** 9", "exit code of ConditionFailedError has the value 9, and had 7"),
    ("docs/http.md", "| `/readyz` |", "| `/ready` |", "address /readyz was removed"),
    ("docs/reference/feed.md", "::: recovery.feed.view.ViewRecord", "", "recovery.feed.view.ViewRecord is no longer shown"),
    ("pyproject.toml", 'requires-python = ">=3.11"', 'requires-python = ">=3.12"', "Python 3 begins at 12, and began at 11"),
    ("pyproject.toml", "\nkafka = [", "\nconfluent = [", "extra kafka was removed"),
    ("pyproject.toml", '[project.entry-points."fsspec.specs"]\ntiered =', '[project.entry-points."fsspec.specs"]\nblobs =',
     "entry point fsspec.specs: tiered was removed"),
]  # fmt: skip
ALLOWED = "setting lease.heartbeat_interval_s"


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Two copies of today's, without its caches: they would outlive an edit of the same second."""
    sides = tmp_path / "old", tmp_path / "new"
    for side in sides:
        for part in PARTS:
            (side / part).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, side / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / part, side / part)
    return sides


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text, f"{path} no longer has {old!r}: plant something else"
    path.write_text(text.replace(old, new, 1), "utf-8")


def test_what_the_last_release_promised_is_kept_or_was_deprecated_by_it() -> None:
    try:
        release = released()
        source = release.source()
    except NotReleasedError as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))
    assert "\n".join(refused(release.version, source, ROOT)) == ""


@pytest.mark.sim
def test_every_planted_break_is_found_and_only_these_and_the_one_that_was_warned_of_is_allowed(trees: tuple[Path, Path]) -> None:
    old, new = trees
    for path, had, has, _ in PLANTED:
        edit(new / path, had, has)
    edit(new / "tiered/settings.py", "heartbeat_interval_s: Annotated[Period, TUNING] = 10.0",
         "heartbeat_interval_s: Annotated[Period, TUNING] = 9.0")  # fmt: skip
    edit(old / "HISTORY.md", "\n## ", f"\n## 0.2.0\n\n**Deprecated**\n\n- `{ALLOWED}`: it will be 9 s.\n\n## ")
    (old / "tiered/warns.py").write_text(f'deprecated("{ALLOWED}", "set it to 9")\n')
    edit(new / "HISTORY.md", "\n## ", f"\n## 0.3.0 (unreleased)\n\n**Removed or changed**\n\n- `{ALLOWED}`: it is 9 s.\n\n## ")
    found = refused("0.2.0", old, new, long=True)
    wanted = [each for *_, told in PLANTED for each in told.split("|")]
    assert [each for each in wanted if not any(sentence.startswith(each) for sentence in found)] == []
    assert [sentence for sentence in found if not any(sentence.startswith(each) for each in wanted)] == []
    assert len(found) == len(wanted)


def test_the_page_names_the_versions_that_are_tested() -> None:
    page = " ".join((ROOT / "docs/promises.md").read_text("utf-8").split())
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    *others, last = [each.rpartition(" ")[2] for each in classifiers if "Python :: 3." in each]
    assert f"Python {', '.join(others)} and {last};" in page
    assert f"PostgreSQL {SERVER_VERSION_MIN // 10_000} or newer" in page


@pytest.mark.sim
def test_the_command_says_that_all_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """Also what audits and exports print."""
    assert main() == 0, capsys.readouterr().err
    assert "promised is kept" in capsys.readouterr().out


def test_a_tree_that_cannot_be_described_is_named(tmp_path: Path) -> None:
    """Today's packages must not be taken for those of the other tree."""
    with pytest.raises(UndescribedError, match=rf"(?s)cannot describe {tmp_path}.*and not from {tmp_path}"):
        described(tmp_path)


def test_every_version_of_a_stored_thing_is_compared() -> None:
    known = {*surface.FORMATS.values(), *surface.NO_FORMATS}
    assert list(surface.unknown_versions(ROOT, known)) == []


@pytest.mark.parametrize(("line", "found"), [
    ("VERSION = 1", ["VERSION"]), ("A, _VERSION = 1, 2", ["_VERSION"]), ("READ_VERSIONS: tuple = (1, 2)", ["READ_VERSIONS"]),
    ("CONVERSION = 1", []), ("def f():\n    VERSION = 1", []),
])  # fmt: skip
def test_a_version_that_nobody_compares_is_found(tmp_path: Path, line: str, found: list[str]) -> None:
    (tmp_path / "tiered").mkdir()
    (tmp_path / "tiered/new.py").write_text(f"{line}\n")
    assert list(surface.unknown_versions(tmp_path, set())) == [f"tiered.new:{name}" for name in found]
