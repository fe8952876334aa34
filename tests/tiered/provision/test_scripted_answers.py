"""`tiered provision` and `tiered check` on scripted servers: what only the real services answer."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from google.cloud.bigtable_admin_v2.types import (
    AppProfile,
    Cluster,
    ColumnFamily,
    CreateAppProfileRequest,
    ListClustersResponse,
    ModifyColumnFamiliesRequest,
    Table,
)
from google.iam.v1.iam_policy_pb2 import TestIamPermissionsResponse as IamPermissions  # type: ignore[import-untyped]

from changelog.base.errors import ConfigurationError, UnavailableError
from tiered.provision import tables as bigtable_admin
from tiered.provision.bucket import look_at_bucket, look_at_permissions, open_client
from tiered.provision.findings import NoticeKind
from tiered.provision.schema import FAMILIES
from tiered.provision.tables import open_admin, provision_tables, verify_on_open
from tiered.settings import BigtableSettings, GcsSettings

AT = BigtableSettings(project="project", instance="i", table="t", changelog_table="t")
WHOLE = Table(column_families={family: ColumnFamily(gc_rule=rule) for family, rule in FAMILIES.items()})
GOOD = AppProfile(single_cluster_routing=AppProfile.SingleClusterRouting(cluster_id="c1", allow_transactional_writes=True))
Answer = bytes | Any
"""A message, or a `grpc.StatusCode`."""


class AdminServer(grpc.GenericRpcHandler):  # type: ignore[misc]  # the package ships no types
    """Both admin services: answers each method as it is told to, and writes down what came."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {"GetTable": Table.serialize(WHOLE), "GetAppProfile": AppProfile.serialize(GOOD)}
        self.calls: list[tuple[str, bytes]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]

        def handle(request: bytes, context: Any) -> Any:
            self.calls.append((method, request))
            self.may_answer.wait()
            answer = self.answers.get(method, grpc.StatusCode.UNIMPLEMENTED)
            if isinstance(answer, bytes):
                return answer
            return context.abort(answer, f"{method} as told")

        return grpc.unary_unary_rpc_method_handler(handle)


@pytest.fixture
def admin() -> Iterator[tuple[AdminServer, BigtableSettings]]:
    scripted = AdminServer()
    server = grpc.server(ThreadPoolExecutor(2), handlers=(scripted,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield scripted, AT.model_copy(update={"emulator_host": f"127.0.0.1:{port}"})
    scripted.may_answer.set()
    server.stop(None).wait()


Scripted = tuple[AdminServer, BigtableSettings]


def profile(**routing: Any) -> Any:
    return AppProfile.serialize(AppProfile(**routing))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (profile(multi_cluster_routing_use_any={}), "routes to any cluster, which excludes single-row transactions: run 'gcloud bigtable "
         "app-profiles update default --project=project --instance=i --route-to=CLUSTER --transactional-writes'"),
        (profile(single_cluster_routing={"cluster_id": "c2"}), "does not allow single-row transactions: run 'gcloud bigtable "
         "app-profiles update default --project=project --instance=i --route-to=c2 --transactional-writes'"),
        (profile(single_cluster_routing={"cluster_id": "c2", "allow_transactional_writes": True}, data_boost_isolation_read_only={}),
         "is for Data Boost, which only reads"),
        (grpc.StatusCode.NOT_FOUND, "there is no app profile default in projects/project/instances/i: run 'gcloud bigtable "
         "app-profiles create default --project=project --instance=i --route-to=CLUSTER --transactional-writes'"),
    ],
    ids=["multi-cluster", "no-transactions", "data-boost", "missing"],
)
@pytest.mark.asyncio
async def test_an_app_profile_that_cannot_swap_stops_the_opening_with_the_command_that_mends_it(
    admin: Scripted, answer: Answer, said: str
) -> None:
    server, at = admin
    await verify_on_open(at)
    server.answers["GetAppProfile"] = answer
    with pytest.raises(ConfigurationError) as wrong:
        await verify_on_open(at)
    assert said in str(wrong.value) and "\n" not in str(wrong.value)


@pytest.mark.asyncio
async def test_an_opening_asks_for_each_table_and_the_profile_once(admin: Scripted) -> None:
    server, at = admin
    assert await verify_on_open(at) == frozenset(FAMILIES)
    assert [method for method, _ in server.calls] == ["GetTable", "GetAppProfile"]


@pytest.mark.asyncio
async def test_an_opening_without_a_changelog_does_not_ask_for_its_table(admin: Scripted) -> None:
    server, at = admin
    at = at.model_copy(update={"changelog_table": "another"})
    await verify_on_open(at, logged=False)
    assert [method for method, _ in server.calls] == ["GetTable", "GetAppProfile"]


@pytest.mark.asyncio
async def test_looks_that_are_not_permitted_are_logged_and_stop_no_opening(admin: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    server, at = admin
    server.answers.update(GetTable=grpc.StatusCode.PERMISSION_DENIED, GetAppProfile=grpc.StatusCode.PERMISSION_DENIED)
    with caplog.at_level(logging.INFO, logger="tiered"):
        assert await verify_on_open(at) is None, "which families there are is not known"
    assert [record.message.partition(": grant")[0] for record in caplog.records] == [
        "schema_note: table t could not be verified", "schema_note: app profile default could not be verified",
    ]


@pytest.mark.asyncio
async def test_a_server_that_never_answers_ends_the_opening_after_the_first_call(
    admin: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, at = admin
    server.may_answer.clear()
    monkeypatch.setattr(bigtable_admin, "CALL_S", 0.2)
    with pytest.raises(UnavailableError, match=rf"Bigtable does not answer at {at.emulator_host}: .*504"):
        await verify_on_open(at)
    assert len(server.calls) <= 1


@pytest.mark.asyncio
async def test_a_missing_instance_is_said_instead_of_its_missing_tables(admin: Scripted) -> None:
    server, at = admin
    server.answers = dict.fromkeys(["GetTable", "GetAppProfile", "GetInstance", "ListClusters"], grpc.StatusCode.NOT_FOUND)
    with pytest.raises(ConfigurationError, match=r"there is no Bigtable instance i in .*gcloud bigtable instances create i") as wrong:
        await verify_on_open(at)
    assert "\n" not in str(wrong.value)
    assert len({finding.sentence for finding in provision_tables(at, dry_run=True)}) == 1


@pytest.mark.asyncio
async def test_an_app_profile_of_its_own_is_created_where_there_is_one_cluster_to_route_to(admin: Scripted) -> None:
    server, at = admin
    cluster = Cluster(name="projects/project/instances/i/clusters/c7")
    server.answers.update(
        GetAppProfile=grpc.StatusCode.NOT_FOUND, CreateAppProfile=AppProfile.serialize(GOOD),
        ListClusters=ListClustersResponse.serialize(ListClustersResponse(clusters=[cluster])),
        ModifyColumnFamilies=Table.serialize(WHOLE),
    )
    ours = at.model_copy(update={"app_profile": "tiered"})
    done = [finding.sentence for finding in provision_tables(ours) if finding.kind is NoticeKind.DONE]
    assert done == ["created app profile tiered, routed to cluster c7 with single-row transactions"]
    [sent] = [CreateAppProfileRequest.deserialize(request) for method, request in server.calls if method == "CreateAppProfile"]
    assert (sent.app_profile_id, sent.parent) == ("tiered", "projects/project/instances/i")
    assert sent.app_profile.single_cluster_routing == AppProfile.SingleClusterRouting(cluster_id="c7", allow_transactional_writes=True)
    [problem] = [finding.sentence for finding in provision_tables(at) if finding.kind is NoticeKind.PROBLEM]
    assert "app-profiles create default" in problem and "--route-to=c7" in problem, "a default that somebody removed is theirs to make"
    two = ListClustersResponse(clusters=[cluster, Cluster(name="projects/project/instances/i/clusters/c8")])
    server.answers["ListClusters"] = ListClustersResponse.serialize(two)
    [problem] = [finding.sentence for finding in provision_tables(ours) if finding.kind is NoticeKind.PROBLEM]
    assert "app-profiles create tiered" in problem and "--route-to=CLUSTER" in problem


@pytest.mark.asyncio
async def test_a_mend_that_is_refused_is_a_problem_and_the_next_one_is_still_made(admin: Scripted) -> None:
    server, at = admin
    server.answers["GetTable"] = Table.serialize(Table(column_families={"fm": ColumnFamily(), "fc": ColumnFamily()}))
    server.answers["ModifyColumnFamilies"] = grpc.StatusCode.PERMISSION_DENIED
    problems = [finding.sentence for finding in provision_tables(at) if finding.kind is NoticeKind.PROBLEM]
    assert [said.partition(":")[0] for said in problems] == [
        "could not add family fg to table t, GC rule maxage=1s", "could not add family ff to table t, GC rule maxage=2d",
    ]
    assert [method for method, _ in server.calls].count("ModifyColumnFamilies") == 2


@pytest.mark.asyncio
async def test_each_family_of_an_emulator_is_updated_as_it_is_to_switch_collection_on(admin: Scripted) -> None:
    server, at = admin
    server.answers["ModifyColumnFamilies"] = Table.serialize(WHOLE)
    assert {finding.kind for finding in provision_tables(at)} == {NoticeKind.OK}
    [sent] = [ModifyColumnFamiliesRequest.deserialize(request) for method, request in server.calls if method == "ModifyColumnFamilies"]
    assert {each.id: each.update.gc_rule for each in sent.modifications} == dict(FAMILIES)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (["bigtable.tables.readRows", "bigtable.tables.mutateRows"], NoticeKind.OK, "may be read and written"),
        (["bigtable.tables.readRows"], NoticeKind.PROBLEM, "lacks bigtable.tables.mutateRows on table t: grant roles/bigtable.user"),
        ([], NoticeKind.PROBLEM, "lacks bigtable.tables.readRows and bigtable.tables.mutateRows"),
        (grpc.StatusCode.PERMISSION_DENIED, NoticeKind.NOTE, "could not be verified"),
    ],
    ids=["both", "reads-only", "none", "not-told"],
)
@pytest.mark.asyncio
async def test_permissions_on_a_table_are_told(admin: Scripted, answer: list[str] | grpc.StatusCode, kind: NoticeKind, said: str) -> None:
    server, at = admin
    held = IamPermissions(permissions=answer).SerializeToString() if isinstance(answer, list) else answer
    server.answers["TestIamPermissions"] = held
    with open_admin(at) as opened:
        [finding] = bigtable_admin.look_at_permissions(opened)
    assert finding.kind is kind and said in finding.sentence


@contextmanager
def answering(status: int, body: dict[str, Any]) -> Iterator[str]:
    """An HTTP server that has one answer to every GET."""

    class ScriptedHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), ScriptedHandler) as server:
        serving = threading.Thread(target=server.serve_forever, args=[0.01])
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@contextmanager
def threads_ended() -> Iterator[None]:
    """Waits for the threads that Google's client starts to look buckets up."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        while not thread.ident:  # listed a moment before it runs, when it cannot be joined yet
            time.sleep(0.001)
        thread.join()


ALL = [
    *(f"storage.objects.{each}" for each in ("create", "delete", "get", "list", "update")),
    *(f"storage.multipartUploads.{each}" for each in ("abort", "create", "list", "listParts")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "held", "kind", "said"),
    [
        (200, ALL, NoticeKind.OK, "may be read and written"),
        (200, ALL[:1] + ALL[2:], NoticeKind.PROBLEM, "lacks storage.objects.delete on bucket b-1: grant roles/storage.objectUser"),
        (200, [], NoticeKind.PROBLEM, "lacks storage.multipartUploads.abort and storage.multipartUploads.create and"),
        (403, [], NoticeKind.NOTE, "could not be verified (403"),
    ],
    ids=["all", "no-delete", "none", "not-told"],
)
def test_permissions_on_a_bucket_are_told(status: int, held: list[str], kind: NoticeKind, said: str) -> None:
    with answering(status, {"name": "b-1", "permissions": held}) as endpoint, threads_ended():
        gcs = GcsSettings(bucket="b-1", endpoint=endpoint)
        with open_client(gcs, "project") as client:
            [finding] = look_at_permissions(client, gcs)
    assert finding.kind is kind and said in finding.sentence


def test_without_credentials_one_sentence_says_how_to_get_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("BIGTABLE_EMULATOR_HOST", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    opened: list[Callable[[], Any]] = [
        lambda: open_admin(AT.model_copy(update={"emulator_host": None})).__enter__(),
        lambda: open_client(GcsSettings(bucket="b-1"), "project").__enter__(),
    ]
    for each in opened:
        with pytest.raises(ConfigurationError, match=r"there are no Google credentials: run 'gcloud .* for emulators set BIG"):
            each()


def test_the_real_service_is_asked_for_no_bucket_without_a_place_for_it() -> None:
    with answering(404, {"error": {"code": 404, "message": "none"}}) as endpoint:
        gcs = GcsSettings(bucket="b-1", endpoint=endpoint)
        with open_client(gcs, "project") as client:
            real = gcs.model_copy(update={"endpoint": None})
            [nowhere], [somewhere] = (list(look_at_bucket(client, real, "owner", where)) for where in (None, "EU"))
    assert nowhere.mend is None and "run 'tiered provision --location EU'" in nowhere.sentence
    assert somewhere.mend is not None and " in EU: " in somewhere.mend.what
