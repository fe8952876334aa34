"""Settings: where they come from, how they relate, and that every mistake is one readable sentence."""

from __future__ import annotations

import json
import os
import pickle
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from changelog.base.errors import ConfigurationError
from tiered.object_id import ObjectId
from tiered.open import open_storage
from tiered.settings import LeaseSettings, Settings, load_settings


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "tiered.yaml"
    path.write_text("directory: from-file\nlease:\n  expiry_s: 40\nrecovery:\n  idle_s: 8\nstore:\n")
    return path


def problems(**values: Any) -> list[str]:
    """The sentences with which `Settings` refuses these values."""
    with pytest.raises(ConfigurationError) as refused:
        Settings(**{"directory": "data"} | values)
    return str(refused.value).splitlines()


# --- sources -------------------------------------------------------------------------------------


def test_settings_from_code_are_what_was_given_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_INLINE_BYTES_MAX", "17")
    settings = Settings(directory="data", changelog="sqlite", lease=LeaseSettings(expiry_s=45))
    assert settings.directory == Path.cwd() / "data"
    assert (settings.inline_bytes_max, settings.lease.expiry_s, settings.lease.heartbeat_interval_s) == (1_048_576, 45.0, 15.0)


def test_the_environment_wins_over_the_file_and_the_file_over_defaults(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_LEASE__EXPIRY_S", "50")
    settings = load_settings(written)
    assert settings.directory == Path.cwd() / "from-file"
    assert (settings.lease, settings.recovery.idle_s) == (LeaseSettings(expiry_s=50), 8)


def paths_in(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """The keys of all settings that are paths."""
    for name, field in model.model_fields.items():
        held = [each for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type)]
        for each in held:
            if issubclass(each, BaseModel):
                yield from paths_in(each, f"{above}{name}.")
            elif issubclass(each, Path):
                yield f"{above}{name}"


def test_every_path_is_absolute_whatever_the_current_directory_is_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(paths_in(Settings)) == ["directory", "daemon.audit_reports"], "a new path is a row below"
    monkeypatch.chdir(tmp_path)
    settings = Settings(directory="a", daemon={"audit_reports": "../b"}, feed={"enabled": True, "to": ["c", "./d@e", "gs://bucket/f"]})
    monkeypatch.chdir("/")
    assert (settings.directory, settings.daemon.audit_reports) == (tmp_path / "a", tmp_path / "../b")
    assert settings.feed.to == (str(tmp_path / "c"), str(tmp_path / "d@e"), "gs://bucket/f")
    assert Settings.unpacked(settings.packed()) == settings


def test_a_relative_path_in_a_directory_that_is_gone_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for values in ({"directory": "a"}, {"directory": "/a", "feed": {"enabled": True, "to": "b"}}):
        with pytest.raises(ConfigurationError, match="it is relative, and the current directory is gone: write the path out"):
            Settings(**values)
    assert Settings(directory="/a").directory == Path("/a")


@pytest.mark.anyio
async def test_a_store_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write failed after seconds with "was deleted or replaced", and a reserve was made in another directory."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there/data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    object_id = ObjectId.create("files", "key")
    async with open_storage(Settings(directory="data", inline_bytes_max=100), recover=True) as storage:
        monkeypatch.chdir(tmp_path / "there")
        for payload in (b"small", b"large" * 1000):
            await storage.put(object_id, payload)
            stored = await storage.get(object_id)
            assert stored is not None and await stored.read() == payload
        upload = await storage.begin_multipart(object_id)
        await upload.upload_part(1, b"part")
        await upload.complete()
        await storage.delete(object_id)
    assert [path for path in (tmp_path / "there").rglob("*") if path.is_file()] == []
    assert (tmp_path / "here/data/tiered.db").is_file()


def test_an_empty_variable_counts_as_unset(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_DIRECTORY", "")
    settings = load_settings(written)
    assert (settings.directory, settings.shown()["directory"]["from"]) == (Path.cwd() / "from-file", str(written))


def test_variables_of_the_command_line_and_the_simulation_are_no_settings(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_CONFIG", "elsewhere.yaml")
    monkeypatch.setenv("TIERED_SIM_NIGHT", "1")
    assert load_settings(written).directory == Path.cwd() / "from-file"


@pytest.mark.parametrize(("variable", "value", "sentence"), [
    ("TIERED_LEASE__EXPIRY", "50", r"^TIERED_LEASE__EXPIRY is set .* no setting; the nearest is TIERED_LEASE__EXPIRY_S$"),
    ("tiered_directory", "elsewhere", r"tiered_directory is set .* is no setting; the nearest is TIERED_DIRECTORY"),
    ("TIERED_STORE__QUEUE_MAX", "many", r"^store\.queue_max \(TIERED_STORE__QUEUE_MAX\) is 'many': .*integer"),
    ("TIERED_INSTANCE", os.fsdecode(b"\xff"), r"^instance \(TIERED_INSTANCE\) is '\\udcff': "),
    ("TIERED_FEED__TO", "[/var/feed]", r"feed\.to \(TIERED_FEED__TO\) is .*JSON list"),
])  # fmt: skip
def test_a_mistake_is_blamed_on_the_variable_it_came_from(
    written: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=sentence):
        load_settings(written)


@pytest.mark.parametrize(("values", "sentence"), [
    ({"lease": {"expiry": 3}}, "lease.expiry is no setting; the nearest is lease.expiry_s"),
    ({"leese": {}}, "leese is no setting; the nearest is lease"),
    ({"expiry_s": 30}, "expiry_s is no setting; the nearest is lease.expiry_s"),
    ({"directory": None}, "directory is not set: give the directory"),
    ({"changelog": "bigtable"}, "changelog is bigtable, but the rows are in a directory, and it is kept beside them: use sqlite or noop"),
    *(({"inline_bytes_max": size}, f"inline_bytes_max is {size}: ") for size in (0, 8 * 1024 * 1024 + 1)),
    *(({"instance": name}, f"instance is {name!r}: ") for name in ("", "a/b", "two words", "x" * 101)),
])  # fmt: skip
def test_a_mistake_is_one_sentence_that_names_the_setting_and_the_fix(values: dict[str, Any], sentence: str) -> None:
    [told] = problems(**values)
    assert told.startswith(sentence)


def test_a_bad_value_is_blamed_on_the_file_it_came_from(written: Path) -> None:
    written.write_text("directory: data\nlease: 30\n")
    with pytest.raises(ConfigurationError) as refused:
        load_settings(written)
    assert str(refused.value) == f"lease ({written}) is 30, not a section of settings: set lease.expiry_s below it"


@pytest.mark.parametrize(("section", "told"), [
    ("postgres", "of type str, not a section of settings: set postgres.dsn below it"),
    ("s3", "'secret', not a section of settings: set s3.bucket below it"),
    ("bigtable", "'secret', not a section of settings: set bigtable.project below it"),
    ("blobs", "of type str, not a section of settings: set blobs.kind below it"),
    ("links", "of type str, not a section of settings: set links.base_url below it"),
    ("store", "'secret', not a section of settings: set store."),
])  # fmt: skip
def test_what_stands_for_a_section_is_told_what_goes_below_it(section: str, told: str) -> None:
    assert any(each.startswith(f"{section} is {told}") for each in problems(**{section: "secret"}))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml does not exist$"):
        load_settings(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigurationError, match=r"cannot be read: Is a directory; for a store .* pass Settings\(directory='"):
        load_settings(tmp_path)


# --- mistakes ------------------------------------------------------------------------------------


def test_each_problem_has_a_sentence_of_its_own() -> None:
    found = problems(changelog=3, inline_bytes_max=0, store={"queue_max": -1, "concurrency_max": 0}, recovery={"idle_s": "soon"})
    assert [sentence.split(" is ")[0] for sentence in found] == [
        "changelog", "inline_bytes_max", "store.concurrency_max", "store.queue_max", "recovery.idle_s",
    ]
    assert not any("pydantic" in sentence or "validation error" in sentence for sentence in found)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_every_duration_and_rate_must_be_positive_and_finite(seconds: float) -> None:
    durations = [key for key in Settings(directory="data").shown() if key.endswith("_s")]
    assert {"lease.expiry_s", "recovery.rate_per_s"} < set(durations)
    for section, _, name in (key.partition(".") for key in durations):
        [sentence] = problems(**{section: {name: seconds}})
        assert sentence.startswith(f"{section}.{name} is ")


# --- relations -----------------------------------------------------------------------------------


def in_google(**values: Any) -> list[str]:
    """The sentences that refuse these for a store in Bigtable and GCS; none: they are taken."""
    given: dict[str, Any] = {"bigtable": {"project": "my-project", "instance": "main"}, "gcs": {"bucket": "blobs"}} | values
    try:
        Settings(**given)
    except ConfigurationError as error:
        return str(error).splitlines()
    return []


def test_a_store_is_in_a_directory_or_in_bigtable_and_gcs() -> None:
    assert in_google() == [] and in_google(changelog="bigtable") == [] and in_google(changelog="noop") == []
    for values, sentence in (
        ({"directory": "data"}, "directory and bigtable and gcs are set: a store is either in a directory, or in services that all of its"
         " machines reach; remove one"),
        ({"gcs": None}, "bigtable is set, and nothing that holds blobs: give the section gcs or s3 too"),
        ({"bigtable": None}, "gcs is set, and nothing that holds rows: give the section bigtable or postgres too"),
        ({"changelog": "sqlite"}, "changelog is sqlite, but the rows are in Bigtable, and it is kept beside them: use bigtable or noop"),
        ({"bigtable": {"instance": "main"}}, "bigtable.project is not set: the section bigtable needs it"),
    ):  # fmt: skip
        assert in_google(**values) == [sentence]


def test_a_changelog_is_kept_wherever_there_is_a_directory_unless_it_is_refused_by_name() -> None:
    assert Settings(directory="data").shown()["changelog"] == {"value": "sqlite", "from": "default"}
    assert Settings(directory="data", changelog="noop").shown()["changelog"] == {"value": "noop", "from": "code"}
    in_google = Settings(bigtable={"project": "project", "instance": "i"}, gcs={"bucket": "blobs"})
    assert in_google.shown()["changelog"] == {"value": None, "from": "default"}


@pytest.mark.parametrize(("prefix", "wrong"), [("", 0), ("a/", 0), ("_a.b-C/9/", 0), ("p" * 199 + "/", 0), ("p" * 200 + "/", 1)])
def test_a_prefix_of_names_leaves_room_for_them(prefix: str, wrong: int) -> None:
    assert len(in_google(gcs={"bucket": "blobs", "prefix": prefix})) == wrong


@pytest.mark.parametrize(
    ("section", "name", "value", "fix"),
    [
        ("bigtable", "project", "My Project", "give the id of a project"),
        ("bigtable", "instance", "projects/p/instances/i", "the id alone, without a path"),
        ("bigtable", "table", "", "the id alone"),
        ("bigtable", "emulator_host", "http://127.0.0.1:8086", "give host:port"),
        ("gcs", "bucket", "gs://blobs", "without gs://"),
        ("gcs", "bucket", "My-Blobs", "lower-case letters, digits"),
        ("gcs", "bucket", "b", "3 characters or more"),
        *(("gcs", "prefix", prefix, "how the names begin, with a slash at the end") for prefix in (
            "photos", "/", "/photos/", "photos//", "../", "a/./", "~owners/", "a/~b/", "é/", "a b/", "a\n/", "a/\n",
        )),
        ("gcs", "endpoint", "http://127.0.0.1:9000/storage/v1", "a URL without a path"),
    ],
)  # fmt: skip
def test_a_name_that_google_would_refuse_is_refused_with_the_fix(section: str, name: str, value: str, fix: str) -> None:
    given = {"bigtable": {"project": "my-project", "instance": "main"}, "gcs": {"bucket": "blobs"}}[section]
    [sentence] = in_google(**{section: given | {name: value}})
    assert sentence.startswith(f"{section}.{name} is {value!r}: ") and fix in sentence


def test_googles_own_variables_lead_to_the_emulators_also_from_code(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"bigtable": {"project": "my-project", "instance": "main"}, "gcs": {"bucket": "blobs"}}
    monkeypatch.delenv("BIGTABLE_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    real = Settings(**given)
    assert real.bigtable is not None and real.gcs is not None
    assert (real.bigtable.emulator_host, real.gcs.endpoint) == (None, None)
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "127.0.0.1:8086")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9000/")
    emulated = Settings(**given)
    assert emulated.bigtable is not None and emulated.gcs is not None
    assert (emulated.bigtable.emulator_host, emulated.gcs.endpoint) == ("127.0.0.1:8086", "http://127.0.0.1:9000")
    assert emulated.shown()["gcs.endpoint"] == {"value": "http://127.0.0.1:9000", "from": "STORAGE_EMULATOR_HOST"}
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "nonsense")
    with pytest.raises(ConfigurationError, match=r"^bigtable.emulator_host is 'nonsense': give host:port"):
        Settings(**given)


def test_sections_of_google_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_BIGTABLE__PROJECT", "my-project")
    monkeypatch.setenv("TIERED_BIGTABLE__INSTANCE", "main")
    monkeypatch.setenv("TIERED_GCS__BUCKET", "blobs")
    shown = load_settings(None).shown()
    assert shown["gcs.bucket"] == {"value": "blobs", "from": "TIERED_GCS__BUCKET"}
    assert shown["bigtable.table"] == {"value": "tiered", "from": "default"}


def test_what_follows_from_a_setting_leaves_room_for_one_that_is_lost() -> None:
    """A lost renewal ends no lease, and a lost checkpoint no writer; clean-up is given up before an answer."""
    settings = Settings(directory="data")
    assert (settings.lease.heartbeat_interval_s, settings.lease.expiry_s) == (10, 30)
    assert (settings.feed.progress_every_s, settings.feed.takeover_s) == (30, 120)
    assert (settings.store.cleanup_budget_s, settings.store.answer_budget_s) == (10, 30)
    assert (settings.recovery.idle_s, settings.recovery.pause_max_s) == (5, 60)


def test_all_broken_relations_are_told_at_once() -> None:
    usecases = {"a": {"time_to_idle_default_s": 6, "lifetime_max_s": 5}}
    assert len(problems(gcs={"bucket": "blobs"}, changelog="bigtable", usecases=usecases)) == 3


# --- shown ---------------------------------------------------------------------------------------


def test_shown_tells_every_value_and_where_it_came_from(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_LEASE__EXPIRY_S", "50")
    shown = load_settings(written).shown()
    assert shown["directory"] == {"value": str(Path.cwd() / "from-file"), "from": str(written)}
    assert shown["lease.expiry_s"] == {"value": 50.0, "from": "TIERED_LEASE__EXPIRY_S"}
    assert shown["changelog"] == {"value": "sqlite", "from": "default"}
    assert json.loads(json.dumps(shown)) == shown
    assert shown["bigtable"] == shown["gcs"] == {"value": None, "from": "default"}
    assert not any(key.startswith(("bigtable.", "gcs.")) for key in shown), "of a section that is not there only the name"
    by_code = Settings(directory="data", lease={"expiry_s": 50}).shown()
    assert [key for key, setting in by_code.items() if setting["from"] == "code"] == ["directory", "lease.expiry_s"]


def test_shown_never_prints_a_secret() -> None:
    class WithSecret(Settings):
        password: SecretStr

    settings = WithSecret(directory=Path("data"), password=SecretStr("open sesame"))
    assert settings.shown()["password"]["value"] == "**********"
    assert "sesame" not in repr(settings)


def test_settings_are_frozen_and_travel_between_processes() -> None:
    settings = Settings(directory="data")
    with pytest.raises(ValidationError, match="frozen"):
        settings.lease.expiry_s = 1
    assert pickle.loads(pickle.dumps(settings)) == settings


# --- files that were not meant well --------------------------------------------------------------


BOMB = b"a: &a [x, x]\n" + b"".join(b"%c: &%c [*%c, *%c]\n" % (n, n, n - 1, n - 1) for n in range(ord("b"), ord("z")))


@pytest.mark.parametrize(("content", "sentence"), [
    (b"lease: [", r"is not YAML: .*line 1"),
    (b"\xff\xfe\xff", r"is not YAML: "),
    (b"- directory", r"holds \['directory'\], not a mapping"),
    (b"just text", r"holds 'just text', not a mapping"),
    (b"1: 2\ndirectory: data", r"^1 \(.*\) is no setting"),
    (b"directory: a\nlease:\n  expiry_s: 40\n  expiry_s: 50\n", r", line 4: expiry_s is said twice"),
    (b"directory: a\nchangelog: sqlite\ndirectory: b\n", r", line 3: directory is said twice"),
    (b"'1': 2\n1: 3\n", r", line 2: 1 is said twice"),
    (b"[" * 100_000, r"nested too deeply"),
    (b"a: " + b"{a: " * 50_000, r"nested too deeply"),
    (b"directory: &d data\ninstance: *d\n", r", line 1: write the value out a second time"),
    (BOMB, r", line 1: write the value out a second time"),
    (b"directory: &a [*a]", r"aliases"),
    (b"base: &b {expiry_s: 40}\nlease: {<<: *b}\n", r"aliases"),
    (b"directory: !!python/object/apply:os.getcwd []", r"give the path of a directory"),
    (b"directory: !path data", r"line 1: leave out the tag !path"),
    (b"lease: {? [a, b] : 1}", r"the name of a setting is text"),
    (b"--- 1\n--- 2\n", r"is not YAML: line 2"),
    (b"lease: {1: 2}", r"^lease\.1 \(.*\) is no setting; the nearest is "),
    (b"directory: d\nlease: {expiry_s: 1:30}", r"^lease\.expiry_s \(.*\) is '1:30': "),
    (b"directory: d\nlease: {expiry_s: yes}", r"^lease\.expiry_s \(.*\) is 'yes': "),
    (b"directory: d\nstore: {queue_max: !!int ''}", r"^store\.queue_max"),
    (b"directory: d\nstore: {queue_max: " + b"9" * 5000 + b"}", r"^store\.queue_max"),
    (b"directory: d\nrecovery: {concurrency_max: 1.0e+23}", r"^recovery\.concurrency_max"),
    (b'directory: "\\ud800"', r"^directory \(.*\) is '\\ud800': give the path"),
    (b'directory: "a\\0b"', r"^directory \(.*\) is 'a\\x00b': give the path"),
    (b"#" * (256 * 1024 + 1), r"has more than 256 KiB"),
], ids=lambda value: None if isinstance(value, str) else repr(value[:30]))  # fmt: skip
def test_a_file_of_tricks_is_refused_in_a_sentence(written: Path, content: bytes, sentence: str) -> None:
    written.write_bytes(content)
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        load_settings(written)
    assert str(written) in str(refused.value) and "\n" not in str(refused.value) and len(str(refused.value)) < 1000


def test_a_date_and_a_number_may_name_what_is_text(written: Path) -> None:
    written.write_text("directory: 2020-99-99\ninstance: '7'\n")
    settings = load_settings(written)
    assert (settings.directory, settings.instance) == (Path.cwd() / "2020-99-99", "7")


@pytest.mark.parametrize("nothing", ["", "lease:", "lease: ~", "lease: {}", "{}", "# a comment"])
def test_what_says_nothing_is_no_mistake(written: Path, monkeypatch: pytest.MonkeyPatch, nothing: str) -> None:
    written.write_text(nothing)
    monkeypatch.setenv("TIERED_DIRECTORY", "data")
    assert load_settings(written).model_dump() == load_settings(None).model_dump() == Settings(directory="data").model_dump()


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(ConfigurationError, match=r"^/dev/zero has more than 256 KiB, so it is no settings file$"):
        load_settings(Path("/dev/zero"))


def test_a_pipe_may_hold_settings(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writing = threading.Thread(target=(tmp_path / "pipe").write_text, args=("directory: data\n",))
    writing.start()
    assert load_settings(tmp_path / "pipe").directory == Path.cwd() / "data"
    writing.join()


def test_of_very_many_mistakes_the_first_are_told(written: Path) -> None:
    written.write_text("".join(f"x{number}: 1\n" for number in range(2000)))
    with pytest.raises(ConfigurationError) as refused:
        load_settings(written)
    [*first, last] = str(refused.value).splitlines()
    assert len(first) == 20 and last == "and 1980 problems more"


# --- values that would hang or harm --------------------------------------------------------------


def numbers() -> dict[str, Any]:
    settings = Settings(bigtable={"project": "my-project", "instance": "main"}, gcs={"bucket": "blobs"})
    values = {key: each["value"] for key, each in settings.shown().items()}
    return {key: value for key, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)}


def refused(key: str, value: object) -> list[str]:
    section, _, name = key.rpartition(".")
    given: dict[str, Any] = {"bigtable": {"project": "my-project", "instance": "main"}, "gcs": {"bucket": "blobs"}}
    values = {section: given.get(section, {}) | {name: value}} if section else {name: value}
    return in_google(**values)


@pytest.mark.parametrize("value", [1e-9, 1e23, -1, True, "true", 10**400])
def test_every_number_has_bounds_within_which_nothing_hangs_or_overflows(value: object) -> None:
    assert len(numbers()) > 25
    for key in numbers():
        assert [sentence for sentence in refused(key, value) if sentence.startswith(f"{key} is ")], (key, value)


@pytest.mark.parametrize("endpoint", ["minio.example.com", "minio.example.com:9000", "127.0.0.1:9000"])
def test_an_endpoint_of_s3_says_whether_it_is_encrypted(endpoint: str) -> None:
    [sentence] = [each for each in problems(s3={"bucket": "blobs", "endpoint": endpoint}) if each.startswith("s3")]
    assert sentence.startswith(f"s3.endpoint is '{endpoint}': give a URL ") and sentence.endswith("such as http://127.0.0.1:9000")
    assert not any(each.startswith("s3") for each in problems(s3={"bucket": "blobs", "endpoint": f"https://{endpoint}/"}))


def test_every_number_takes_its_default() -> None:
    for key, value in numbers().items():
        assert refused(key, value) == refused(key, str(value)) == []


@pytest.mark.parametrize("endpoint", [
    "http://user:pass/word@127.0.0.1:9000", "user:password@127.0.0.1:9000", "http://pass'word@127.0.0.1:9000", "http://h:1/?password@",
])  # fmt: skip
def test_a_password_in_an_address_is_refused_and_not_repeated(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [sentence] = in_google(gcs={"bucket": "blobs", "endpoint": endpoint})
    assert sentence.startswith("gcs.endpoint is …@") and "without a path, a query or a user" in sentence and "word" not in sentence
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "user:password@127.0.0.1:8086")
    [sentence] = in_google()
    assert sentence.startswith("bigtable.emulator_host is …@127.0.0.1:8086': give host:port") and "password" not in sentence


def test_a_home_directory_is_found(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert Settings(directory="~/photos").directory == Path("/home/somebody/photos")
    written.write_text("directory: ~/photos\n")
    assert load_settings(written).directory == Path("/home/somebody/photos")
    assert problems(directory="~nobody-of-that-name/x")[0].startswith("directory is '~nobody-of-that-name/x': there is no such user")


@pytest.mark.anyio
@pytest.mark.parametrize("source", [b"tiered.yaml", bytearray(b"x"), 3, {"directory": "data"}, object, None])
async def test_what_is_no_path_of_a_file_is_refused_in_a_sentence(source: Any) -> None:
    if source is not None:
        with pytest.raises(ConfigurationError, match="pass Settings"):
            load_settings(source)
    with pytest.raises(ConfigurationError, match="pass Settings"):
        async with open_storage(source):
            pass


@pytest.mark.parametrize(("said", "read"), [
    ("/var/feed", ("/var/feed",)), ('["/var/feed","gs://b/feed"]', ("/var/feed", "gs://b/feed")), ("[]", ()),
])  # fmt: skip
def test_one_place_of_the_feed_may_be_text(said: str, read: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("TIERED_FEED__TO", said)
    assert load_settings(None).feed.to == read
    monkeypatch.delenv("TIERED_FEED__TO")
    (file := tmp_path / "s.yaml").write_text(f"feed:\n  to: {said}\n")
    assert load_settings(file).feed.to == read


@pytest.mark.parametrize("said", ["5", "['/var/feed'", "{a: b}", "[5]", "[null]", '[""]'])
def test_a_place_of_the_feed_that_is_none_is_one_sentence(said: str, tmp_path: Path) -> None:
    (file := tmp_path / "s.yaml").write_text(f"directory: {tmp_path}\nfeed:\n  to: {said}\n")
    with pytest.raises(ConfigurationError, match=r"feed\.to|is not YAML"):
        load_settings(file)


@pytest.mark.parametrize("place", ["https://user:hush@host/feed", "kafka://b:9092/t?sasl.password=hush", "https://hush@host/a"])
def test_secrets_of_a_place_of_the_feed_are_shown_nowhere(place: str, tmp_path: Path) -> None:
    settings = Settings(directory=tmp_path, feed={"enabled": True, "to": [place]})
    assert "hush" not in str(settings.shown()["feed.to"]["value"])
    assert "host" in str(settings.shown()["feed.to"]["value"]) or "b:9092" in str(settings.shown()["feed.to"]["value"])
    with pytest.raises(ConfigurationError) as caught:
        Settings(directory=tmp_path, feed={"to": {place: 1}})
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        Settings(directory=tmp_path, feed={"to": [place + "x" * 2000]})
    assert "hush" not in str(caught.value)


KEY, OTHER = "hush-9f8e7d6c5b4a39281706f5e4d3c2b1a0", "mute-0a1b2c3d4e5f60718293a4b5c6d7e8f9"


@pytest.mark.parametrize(("said", "read"), [(KEY, [KEY]), (f'["{KEY}", "{OTHER}"]', [KEY, OTHER])])
def test_one_key_of_links_may_be_text(said: str, read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("DIRECTORY", str(tmp_path)), ("LINKS__BASE_URL", "https://host/links/"), ("LINKS__KEYS", said)):
        monkeypatch.setenv(f"TIERED_{name}", value)
    settings = load_settings(None)
    assert settings.links is not None and settings.links.base_url == "https://host/links"
    assert [key.get_secret_value() for key in settings.links.keys] == read


def test_what_chance_gives_is_a_key(tmp_path: Path) -> None:
    for key in (secrets.token_hex(16), secrets.token_urlsafe(32), "".join(secrets.choice("0123456789") for _ in range(40))):
        Settings(directory=tmp_path, links={"base_url": "https://host", "keys": [key]})


@pytest.mark.parametrize(
    ("said", "read"),
    [("*", ("*",)), ("https://a.example", ("https://a.example",)), (["http://localhost:5173", "http://[::1]:80"], None), ('["*"]', ("*",))],
)
def test_origins_are_what_a_browser_sends(said: Any, read: Any, tmp_path: Path) -> None:
    settings = Settings(directory=tmp_path, links={"base_url": "https://host", "keys": [KEY], "origins": said})
    assert settings.links is not None and settings.links.origins == (tuple(said) if read is None else read)
    assert Settings.unpacked(settings.packed()) == settings


def test_a_key_of_links_is_shown_nowhere(tmp_path: Path) -> None:
    links = {"base_url": "https://host/links", "keys": [KEY, OTHER]}
    settings = Settings(directory=tmp_path, links=links)
    assert settings.shown()["links.base_url"]["value"] == "https://host/links"
    for told in (settings, settings.shown(), settings.model_dump_json(), settings.links):
        assert not any(secret in f"{told!r} {told}" for secret in (KEY, OTHER))


@pytest.mark.parametrize(
    ("links", "told"),
    [
        ({"base_url": "https://host/links"}, "links.keys is not set"), ({"keys": [KEY]}, "links.base_url is not set"),
        ({"base_url": "https://host", "keys": []}, "links.keys is wrong"), ({"base_url": "https://host", "keys": ["hush"]}, "openssl rand"),
        ({"base_url": "https://host", "keys": [KEY] * 9}, "links.keys is wrong"),
        *(({"base_url": "https://host", "keys": [key]}, "links.keys.0 is wrong, and not shown: its characters are too few or repeat")
          for key in (" " * 40, "hush" * 8, "a" * 32, "ab" * 20, "hush-" * 9, "a" * 33 + "bcdefgh", "h" * 16 + "u" * 16)),
        *(({"base_url": "https://host", "keys": [KEY], "origins": origin}, "give what a browser sends as Origin")
          for origin in ("app.example.com", "https://app.example.com/", "https://app.example.com/x", "null", "", ["*", "https://A.example"])),
        ({"base_url": "https://host", "keys": [KEY], "origins": {"a": 1}}, "links.origins"),
        ({"base_url": "https://host", "keys": {KEY: 1}}, "links.keys is wrong"),
        ({"base_url": "https://host", "keys": [[KEY]]}, "links.keys.0 is wrong, and not shown"),
        ({"base_url": "https://host", "keys": "[" * 100_000}, "links.keys is wrong, and not shown"),
        ({"base_url": "https://host", "key": KEY}, "links.key is no setting"), (KEY, "links is of type str, not a section"),
        *(({"base_url": url, "keys": [KEY]}, "give the URL where the app is mounted")
          for url in ("host/links", "https://host/links?a=b", "https://host/#a", "ftp://host", "https://", "https://user:hush@host/links")),
    ],
)  # fmt: skip
def test_what_is_wrong_about_links_is_told_without_a_key(links: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings(directory=tmp_path, links=links)
    assert told in str(caught.value)
    assert "hush" not in str(caught.value)


def test_keys_that_are_wrong_were_also_told_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings(directory=tmp_path, links={"base_url": "https://host/links", "keys": ["hush", "a" * 40]})
    assert [line.partition(" ")[0] for line in str(caught.value).splitlines()] == ["links.keys.0", "links.keys.1"]


# --- what usecases are allowed ---------------------------------------------------------------------


def test_policies_of_usecases_are_read_from_a_file_and_from_the_environment(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.write_text(
        'directory: d\nusecases:\n  attachments: {lifetime_max_s: 86400, per_scope: {org: {requests_per_s: 50}}}\n  "*": {closed: true}\n'
    )
    settings = load_settings(written)
    policy = settings.usecases["attachments"]
    assert (policy.lifetime_max_s, policy.per_scope["org"].requests_per_s, settings.usecases["*"].closed) == (86400, 50, True)
    assert Settings.unpacked(settings.packed()).usecases == pickle.loads(pickle.dumps(settings)).usecases == settings.usecases
    assert settings.shown()["usecases"]["value"]["attachments"]["lifetime_max_s"] == 86400
    assert Settings(directory="d").shown()["usecases"] == {"value": {}, "from": "default"}
    monkeypatch.setenv("TIERED_USECASES", '{"logs": {"object_bytes_max": 5}}')
    settings = load_settings(written)
    assert [*settings.usecases] == ["logs"] and settings.shown()["usecases"]["from"] == "TIERED_USECASES"


@pytest.mark.parametrize(("usecases", "sentence"), [
    ({"a": {"lifetime_max": 5}}, "usecases.a.lifetime_max is no setting; the nearest is usecases.a.lifetime_max_s"),
    ({"a": {"per_scope": {"org": {"burst": 5}}}}, "usecases.a.per_scope.org.burst is no setting; the nearest is usecases.a.per_scope.org."),
    ({"a/b": {}}, "usecases.a/b is for no object: usecase 'a/b' must not contain '/'"),
    ({"": {}}, "usecases. is for no object: the usecase is empty"),
    ({"a": {"per_scope": {"o.g": {"bytes_per_s": 3}}}}, "usecases.a is for no object: scope name 'o.g' must not contain"),
    ({"a": {"per_scope": {"org": {}}}}, "usecases.a.per_scope.org limits nothing: give it requests_per_s or bytes_per_s"),
    ({"a": {"time_to_live_default_s": 5, "time_to_idle_default_s": 5}}, "usecases.a has time_to_live_default_s and"),
    ({"a": {"time_to_idle_default_s": 6, "lifetime_max_s": 5}}, "usecases.a has a default lifetime of 6 s and lifetime_max_s 5"),
    ({"a": None}, "usecases.a is None, not a section of settings"),
    ({"a": {"requests_per_s": 0}}, "usecases.a.requests_per_s is 0: "),
    ({"a": {"burst_s": float("nan")}}, "usecases.a.burst_s is nan: "),
    ({"a": {"object_bytes_max": True}}, "usecases.a.object_bytes_max is True: give a number"),
    ({"a": {"closed": "maybe"}}, "usecases.a.closed is 'maybe': "),
    ([], "usecases is []: "), ("{a", "usecases is '{a': give a JSON object, such as "), ("[" * 100_000, "usecases is '[[["),
    ('{"a": {}, "a": {"closed": true}}', "usecases is "), ('{"a": {"closed": true, "closed": false}}', "usecases is "),
    ({"\ud800": {}}, "usecases.\\ud800 is for no object: "), ({"a": {"\ud800": 1}}, "usecases.a"),
    ({"a": {"per_scope": {"\ud800": {"bytes_per_s": 1}}}}, "usecases.a is for no object: "),
], ids=repr)  # fmt: skip
def test_what_is_wrong_about_a_policy_is_one_sentence(usecases: Any, sentence: str) -> None:
    [told] = problems(usecases=usecases)
    assert told.startswith(sentence) and len(told) < 500


@pytest.mark.parametrize("postgres", [
    "host=h password=hush", {"dsn": "host=h password=hush"}, {"dsn": {"password": "hush"}}, {"dsn": ["password=hush"]},
], ids=["section", "no URL", "mapping", "list"])  # fmt: skip
def test_a_password_of_the_database_was_shown_where_it_was_misplaced(postgres: Any) -> None:
    with pytest.raises(Exception, match="postgres") as caught:
        Settings(postgres=postgres)
    assert "hush" not in f"{caught.value}"


def test_a_variable_that_only_begins_as_that_of_the_file_was_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_CONFIG_FILE", str(tmp_path / "tiered.yaml"))
    (tmp_path / "tiered.yaml").write_text("directory: data\n")
    with pytest.raises(ConfigurationError, match="TIERED_CONFIG_FILE is set in the environment but is no setting"):
        load_settings(tmp_path / "tiered.yaml")
