"""Each extra brings what its feature needs, and nothing else has to be there; without it, a sentence names it.

Each feature runs in an empty environment of its own. There the wheel is installed, where the feature is a command with
the extra `daemon`. First the feature must be refused by a sentence that names its extra. That is installed as the
sentence says, and then the feature must work. The services run outside of the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from emulators.ports import free_port
from emulators.postgres.server import PostgresServer
from tests.given.emulated_services import emulated_services
from tests.given.installed import Environment, without_requirement
from tests.given.kafka import KafkaMock, kafka_mock
from tests.given.repository import ROOT
from tiered import Settings
from tiered.sinks import SINKS, SinkKind

DIRECTORY = ("tiered", "--directory", "store")
CONFIGURED = ("tiered", "--config", "tiered.yaml")
OBJECT = "notes/objects/cat.jpg"
LARGE = 3_000_000
AUDIT_FAILED = 2
"""How a command of the audit ends if it cannot run."""

PREAMBLE = """
import sys, anyio
from tiered import ConfigurationError, Metadata, ObjectId, Settings, open_storage

def run(main):
    try:
        anyio.run(main)
    except ConfigurationError as error:
        sys.exit(str(error))
"""

PUT_GET_DELETE = f"""{PREAMBLE}
async def main():
    async with open_storage("tiered.yaml") as storage:
        for key, payload in (("small", b"x" * 10), ("large", b"y" * {LARGE})):
            object_id = ObjectId.create("notes", key)
            await storage.put(object_id, payload)
            async with await storage.get(object_id) as stored:
                assert await stored.read() == payload
            await storage.delete(object_id)
            assert await storage.get(object_id) is None
    print("done")

run(main)
"""

PROVISION = f"""{PREAMBLE}
from tiered.kinds.chosen import provision
from tiered.provision.findings import problems
from tiered.settings import load_settings

async def main():
    sys.exit("; ".join(problems(await provision(load_settings("tiered.yaml")))) or None)

run(main)
"""

COMPRESSED = f"""{PREAMBLE}
async def main():
    async with open_storage(Settings(directory="store")) as storage:
        object_id = ObjectId.create("notes", "compressed")
        await storage.put(object_id, b"z" * {LARGE}, compress="zstd")
        stored = await storage.get(object_id)
        assert await stored.read() == b"z" * {LARGE}
        head = await storage.head(object_id)
        assert head.metadata.compression == "Zstd" and head.size < 10_000, head
    print("done")

run(main)
"""

IMPORTED = """
import importlib, sys
from tiered import ConfigurationError

try:
    importlib.import_module(sys.argv[1])
except ConfigurationError as error:
    sys.exit(str(error))
"""

FILES = """
import fsspec

options = {"settings": {"directory": "store"}}
with fsspec.open("tiered://notes/objects/a.txt", "wb", **options) as file:
    file.write(b"written")
with fsspec.open("tiered://notes/objects/a.txt", "rb", **options) as file:
    assert file.read() == b"written"
print("done")
"""

SUITE = """
import pytest
from tiered import ObjectId, UnavailableError
from tiered.testing.contracts import high_volume, long_term, parts  # noqa: F401

@pytest.mark.anyio
async def test_a_fault(memory_store):
    object_id = ObjectId.create("notes", "a")
    await memory_store.put(object_id, b"payload")
    memory_store.faults.fail("get", UnavailableError)
    with pytest.raises(UnavailableError):
        await memory_store.get(object_id)

def test_blocking(blocking_memory_store):
    blocking_memory_store.put(ObjectId.create("notes", "a"), b"payload")
"""

TOLD = f"""{PREAMBLE}
from tiered import Telemetry

try:
    if "metrics" in sys.argv[1:]:
        from prometheus_client import CollectorRegistry, generate_latest
        from opentelemetry.trace import NoOpTracerProvider
        registry, provider = CollectorRegistry(), NoOpTracerProvider()
    else:
        registry, provider = (object(), None) if "registry" in sys.argv[1:] else (None, object())
    telemetry = Telemetry(registry=registry, tracer_provider=provider)
except ConfigurationError as error:
    sys.exit(str(error))

async def main():
    async with open_storage(Settings(directory="store"), telemetry=telemetry) as storage:
        await storage.put(ObjectId.create("notes", "a"), b"payload")
    shown = generate_latest(registry).decode()
    assert 'tiered_operations_total{{class="ok",operation="put",result="ok"}} 1.0' in shown, shown
    print("done")

run(main)
"""


@pytest.fixture
def bare(wheel: Path, tmp_path: Path) -> Environment:
    return Environment(tmp_path, wheel)


@pytest.fixture
def daemon(wheel: Path, tmp_path: Path) -> Environment:
    return Environment(tmp_path, wheel, "daemon")


def configure(environment: Environment, settings: Mapping[str, object]) -> None:
    (environment.directory / "tiered.yaml").write_text(json.dumps(settings))


def put(environment: Environment, tiered: tuple[str, ...] = DIRECTORY) -> None:
    (environment.directory / "payload").write_bytes(b"p" * LARGE)
    environment.run(*tiered, "put", OBJECT, "payload")


# --- services ------------------------------------------------------------------------------------


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    with emulated_services(monkeypatch) as settings:
        yield settings


def test_gcp_brings_what_a_store_on_bigtable_and_gcs_needs(bare: Environment, services: Settings) -> None:
    (bare.directory / "tiered.yaml").write_text((ROOT / "deploy" / "emulators.yaml").read_text())
    bare.refused("gcp", "python", "-c", PUT_GET_DELETE, code=1)
    bare.add("gcp")
    assert bare.run("python", "-c", PUT_GET_DELETE) == "done\n"


def use_postgres(environment: Environment, postgres: PostgresServer) -> None:
    configure(environment, {"directory": "store", "postgres": {"dsn": postgres.dsn(), "schema_name": f"extra_{os.urandom(4).hex()}"}})


def test_postgres_brings_what_rows_in_postgresql_need(bare: Environment, durable_postgres: PostgresServer) -> None:
    use_postgres(bare, durable_postgres)
    bare.refused("postgres", "python", "-c", PUT_GET_DELETE, code=1)
    bare.add("postgres")
    bare.run("python", "-c", PROVISION)
    assert bare.run("python", "-c", PUT_GET_DELETE) == "done\n"


def test_an_extra_that_lacks_a_package_is_found(wheel: Path, tmp_path: Path, durable_postgres: PostgresServer) -> None:
    (tmp_path / "wheel").mkdir()
    lacking = Environment(tmp_path, without_requirement(wheel, "asyncpg", tmp_path / "wheel"))
    use_postgres(lacking, durable_postgres)
    lacking.add("postgres")
    with pytest.raises(AssertionError, match="PostgreSQL needs asyncpg, which is missing"):
        lacking.run("python", "-c", PROVISION)


def test_s3_brings_what_blobs_in_s3_need(bare: Environment, durable_postgres: PostgresServer, versitygw_url: str) -> None:
    """Rows have to be in a service, too, if blobs are."""
    configure(bare, {
        "postgres": {"dsn": durable_postgres.dsn(), "schema_name": "extra_s3"},
        "s3": {"bucket": "extra-s3", "endpoint": versitygw_url, "region": "us-east-1", "addressing_style": "path"},
    })  # fmt: skip
    bare.refused("postgres", "python", "-c", PUT_GET_DELETE, code=1)
    bare.add("postgres")
    bare.refused("s3", "python", "-c", PROVISION, code=1)
    bare.add("s3")
    bare.run("python", "-c", PROVISION)
    assert bare.run("python", "-c", PUT_GET_DELETE) == "done\n"


# --- the command ---------------------------------------------------------------------------------


def test_daemon_brings_what_the_command_needs(bare: Environment) -> None:
    bare.refused("daemon", *DIRECTORY, "status")
    bare.add("daemon")
    put(bare)
    bare.run(*DIRECTORY, "recover", "--once")
    assert json.loads(bare.run(*DIRECTORY, "status", "--json"))["store"]["kind"] == "embedded"
    with bare.running("tiered", "feed", "receive", "--listen", f"127.0.0.1:{free_port()}", "received") as said:
        assert said.startswith("files sent to http://127.0.0.1:")


def test_audit_brings_what_an_audit_and_a_table_of_all_objects_need(daemon: Environment) -> None:
    put(daemon)
    daemon.refused("audit", *DIRECTORY, "audit", "run", "--engine", "local", "--to", "audit", code=AUDIT_FAILED)
    daemon.refused("audit", *DIRECTORY, "export", "table", "--to", "table")
    daemon.add("audit")
    daemon.run(*DIRECTORY, "audit", "run", "--engine", "local", "--to", "audit")
    daemon.run(*DIRECTORY, "export", "table", "--to", "table")
    assert list((daemon.directory / "table").glob("*.parquet"))
    assert (daemon.directory / "audit" / "report.html").exists()


def test_spark_and_java_bring_what_an_audit_on_spark_needs(daemon: Environment) -> None:
    """No other Java may be found."""
    put(daemon)
    on_spark = (*DIRECTORY, "audit", "run", "--engine", "spark", "--to", "audit")
    for name in ("sh", "bash", "env", "dirname", "basename", "ps", "uname", "cat", "tr", "nice", "ls", "rm", "readlink", "expr"):
        for place in ("/usr/bin", "/bin"):
            if (Path(place) / name).exists():
                (daemon.directory / "path").mkdir(exist_ok=True)
                (daemon.directory / "path" / name).symlink_to(Path(place) / name)
                break
    no_java = {"PATH": f"{daemon.programs}:{daemon.directory / 'path'}", "JAVA_HOME": ""}
    daemon.refused("spark", *on_spark, variables=no_java, code=AUDIT_FAILED)
    daemon.add("spark")
    daemon.refused("java", *on_spark, variables=no_java, code=AUDIT_FAILED)
    daemon.add("java")
    daemon.run(*on_spark, variables=no_java)
    assert json.loads((daemon.directory / "audit" / "manifest.json").read_text())


# --- the feed ------------------------------------------------------------------------------------


def test_feed_brings_what_a_feed_as_avro_and_by_http_needs(daemon: Environment) -> None:
    configure(daemon, {"directory": "store", "feed": {"enabled": True, "format": "avro"}})
    put(daemon, CONFIGURED)
    daemon.refused("feed", *CONFIGURED, "feed", "run", "--once", "--to", "published")
    daemon.refused("feed", *CONFIGURED, "feed", "run", "--once", "--to", "http://127.0.0.1:9/feed")
    daemon.add("feed")
    port = free_port()
    with daemon.running("tiered", "feed", "receive", "--listen", f"127.0.0.1:{port}", "received") as said:
        assert said.startswith("files sent to")
        daemon.run(*CONFIGURED, "feed", "run", "--once", "--to", "published", "--to", f"http://127.0.0.1:{port}/")
    for place in ("published", "received"):
        assert list((daemon.directory / place).glob("generation-*/*.avro")), place
        [generation] = (daemon.directory / place).glob("generation-*")
        assert OBJECT in daemon.run("tiered", "feed", "view", f"{place}/{generation.name}")


@pytest.mark.parametrize("kind", [kind for kind in SINKS if kind.extra], ids=lambda kind: kind.module)
def test_the_extra_of_a_sink_brings_all_that_its_module_imports(daemon: Environment, kind: SinkKind) -> None:
    open_it = f"from recovery.feed.sinks.open import open_sink\nprint(open_sink({kind.shape!r}, SystemRuntime()).name)"
    command = ("python", "-c", f"from changelog.base.runtime import SystemRuntime\n{open_it}")
    configure(daemon, {"directory": "store", "feed": {"enabled": True, "to": kind.shape}})
    put(daemon, CONFIGURED)
    daemon.refused(kind.extra, *CONFIGURED, "feed", "run", "--once")
    daemon.add(kind.extra)
    assert daemon.run(*command) == f"{kind.shape}\n"


@pytest.fixture
def kafka() -> Iterator[KafkaMock]:
    with kafka_mock() as cluster:
        yield cluster


def test_kafka_brings_what_a_feed_to_a_topic_needs(daemon: Environment, kafka: KafkaMock) -> None:
    configure(daemon, {"directory": "store", "feed": {"enabled": True}})
    put(daemon, CONFIGURED)
    deliver = (*CONFIGURED, "feed", "run", "--once", "--to", f"kafka://{kafka.brokers}/of-an-extra")
    daemon.refused("kafka", *deliver)
    daemon.add("kafka")
    daemon.run(*deliver)
    assert any(OBJECT.encode() in (record.value() or b"") for record in kafka.records("of-an-extra"))


def test_demo_brings_what_the_demo_needs_and_it_leaves_nothing_in_the_temporary_folder(wheel: Path, tmp_path: Path) -> None:
    of_the_demo = Environment(tmp_path, wheel, "demo")
    (tmp_path / "temporary").mkdir()
    variables = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "temporary")}
    said = of_the_demo.run("python", "-m", "emulators", "demo", "--seconds", "2", "--writers", "2", variables=variables)
    assert "Without Spark, in processes of its own: pyspark is not installed" in said
    assert "DATA LOSS" not in said and "3   of 3 that were planted" in said and said.count("PASSED") == 2
    assert list((tmp_path / "temporary").iterdir()) == []


# --- the library ---------------------------------------------------------------------------------


def test_zstd_brings_what_compressed_objects_need(bare: Environment) -> None:
    if sys.version_info < (3, 14):
        bare.refused("zstd", "python", "-c", COMPRESSED, code=1)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", bare.programs / "python", "install", "--quiet"]  # itself, not uv
    subprocess.run([*pip, f"{bare.wheel}[zstd]", "-c", ROOT / "constraints.txt"], check=True, cwd=bare.directory)
    assert bare.run("python", "-c", COMPRESSED) == "done\n"


def test_fsspec_brings_what_files_of_a_store_need(bare: Environment) -> None:
    bare.refused("fsspec", "python", "-c", IMPORTED, "tiered.filesystem.implementation", code=1)
    bare.add("fsspec")
    assert bare.run("python", "-c", FILES) == "done\n"


def test_testing_brings_what_a_suite_with_a_store_in_memory_needs(bare: Environment) -> None:
    for module in ("tiered.testing.fixtures", "tiered.testing.contracts.high_volume"):
        bare.refused("testing", "python", "-c", IMPORTED, module, code=1)
    bare.add("testing")
    (bare.directory / "conftest.py").write_text('pytest_plugins = ["tiered.testing.fixtures"]\n')
    (bare.directory / "test_it.py").write_text(SUITE)
    assert "2 passed" in bare.run("python", "-m", "pytest", "-q", "--rootdir", ".", "-W", "error", "test_it.py", "--confcutdir", ".")


def test_telemetry_brings_what_metrics_and_traces_need(bare: Environment) -> None:
    bare.refused("telemetry", "python", "-c", TOLD, "registry", code=1)
    bare.refused("telemetry", "python", "-c", TOLD, "provider", code=1)
    bare.add("telemetry")
    assert bare.run("python", "-c", TOLD, "metrics") == "done\n"


# --- without -------------------------------------------------------------------------------------

SECTIONS: dict[str, Mapping[str, object]] = {
    "gcp": {"changelog": "bigtable", "bigtable": {"project": "my-project-123", "instance": "main"}, "gcs": {"bucket": "bucket"}},
    "postgres": {"postgres": {"dsn": "postgresql://nobody@127.0.0.1:9/none"}, "gcs": {"bucket": "bucket"}},
}
FED = {"directory": "store", "feed": {"enabled": True}}
"""What is in a service, and which extra is asked for first."""


def test_each_command_is_refused_by_a_sentence_that_names_the_extra(daemon: Environment) -> None:
    """Those of a store in services. The other tests have those of a directory."""
    for extra, settings in SECTIONS.items():
        configure(daemon, settings)
        for command in (["ls"], ["put", OBJECT, "tiered.yaml"], ["recover", "--once"], ["provision"], ["check"]):
            daemon.refused(extra, *CONFIGURED, *command)
    configure(daemon, FED)
    put(daemon, CONFIGURED)
    for extra, sink in (("gcp", "gs://bucket/feed"), ("s3", "s3://bucket/feed")):
        daemon.refused(extra, *CONFIGURED, "feed", "run", "--once", "--to", sink)
    daemon.refused("audit", "tiered", "feed", "view", "gs://bucket/feed/generation-0001795000000000")
