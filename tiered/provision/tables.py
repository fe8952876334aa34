"""Looks at the tables and the app profile of a Bigtable instance, and makes the mends of `tiered provision`.

    look_at_tables        each table once: is it there, its families, their GC rules (`tiered.provision.schema`)
    look_at_profile       single-cluster routing with single-row transactions, or no swap is possible
    look_at_permissions   reading and mutating rows, as the service tells it
    verify_on_open        the first two, when a storage is opened: three calls of at most 5 s each, if all is there
    hand_back_table       removes the family of marks, for software that knows none

A mend creates what is missing, or replaces a rule that destroys needed data. It never makes a rule keep data for a
shorter time. A rule that is only wasteful is reported with the command for it. Instances are not created, because they
cost money by the hour.

*Failure*: what this identity may not look at, or what the server (an emulator) does not know, is a note. A server that
does not answer is `UnavailableError`, and missing credentials are `ConfigurationError`; both say it in one sentence.
The functions block: use worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
from anyio import CapacityLimiter
from google.api_core.exceptions import Forbidden, GoogleAPICallError, MethodNotImplemented, NotFound
from google.auth.exceptions import GoogleAuthError
from google.cloud.bigtable_admin_v2.services.bigtable_instance_admin.client import BigtableInstanceAdminClient
from google.cloud.bigtable_admin_v2.services.bigtable_instance_admin.transports.grpc import BigtableInstanceAdminGrpcTransport
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.client import BaseBigtableTableAdminClient
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports.grpc import BigtableTableAdminGrpcTransport
from google.cloud.bigtable_admin_v2.types import AppProfile, ColumnFamily, GcRule, ModifyColumnFamiliesRequest, Table

from changelog.base.errors import ConfigurationError, UnavailableError, no_credentials
from changelog.base.events import events
from changelog.base.threads import in_thread
from tiered.bigtable.cells import MARKS
from tiered.provision.findings import Mend, MendFailedError, Notice, NoticeKind, carry_out, note, ok, problem, problems
from tiered.provision.schema import describe, harm, tables_of, waste
from tiered.settings import BigtableSettings

CALL_S = 5.0
CREATE_S = 60.0
PERMISSIONS = ("bigtable.tables.readRows", "bigtable.tables.mutateRows")
EXCESS: Mapping[str, str] = {
    "bigtable.tables.delete": "may delete the table of the store",
    "bigtable.tables.setIamPolicy": "may give others rights on the table",
    "bigtable.tables.update": "may change the rules by which the table collects marks",
}
"""What no writer needs, as the rest of a sentence about an identity. `tiered prove` needs the first for its trial."""

T = TypeVar("T")
Modification = ModifyColumnFamiliesRequest.Modification


@dataclass(frozen=True)
class Admin:
    """The two admin clients of one instance.

    `wanted`: the tables that must be there, as in `tiered.provision.schema.tables_of`. `seen`: the tables that were
    looked at, as they are.
    """

    at: BigtableSettings
    wanted: Mapping[str, Mapping[str, GcRule]]
    tables: BaseBigtableTableAdminClient
    instances: BigtableInstanceAdminClient
    seen: dict[str, Table] = field(default_factory=dict)

    @property
    def instance(self) -> str:
        return f"projects/{self.at.project}/instances/{self.at.instance}"

    def table(self, name: str) -> str:
        return f"{self.instance}/tables/{name}"

    def look(self, call: Callable[[], T]) -> T:
        """Makes a call that reads. `UnavailableError`: no answer.

        NotFound, Forbidden and MethodNotImplemented are raised as they are, because they say something about what is
        looked at.
        """
        try:
            return call()
        except (NotFound, Forbidden, MethodNotImplemented):
            raise
        except (GoogleAPICallError, GoogleAuthError) as error:
            where = f"at {self.at.emulator_host}" if self.at.emulator_host else f"for {self.instance}"
            cure = "start it, or correct bigtable.emulator_host" if self.at.emulator_host else "check the network and the credentials"
            raise UnavailableError(f"Bigtable does not answer {where}: {cure} ({_said(error)})") from error


@contextmanager
def open_admin(at: BigtableSettings, wanted: Mapping[str, Mapping[str, GcRule]] | None = None) -> Iterator[Admin]:
    """The clients for the service, or for an emulator. `wanted` None: all that our software may need.

    To an emulator they use an insecure channel, past any proxy setting. Google's own variable is ignored by these
    clients.
    """
    wanted = tables_of(at) if wanted is None else wanted
    if at.emulator_host is not None:
        with grpc.insecure_channel(at.emulator_host, options=[("grpc.enable_http_proxy", 0)]) as channel:
            tables = BaseBigtableTableAdminClient(transport=BigtableTableAdminGrpcTransport(channel=channel))
            yield Admin(at, wanted, tables, BigtableInstanceAdminClient(transport=BigtableInstanceAdminGrpcTransport(channel=channel)))
        return
    try:
        admin = Admin(at, wanted, BaseBigtableTableAdminClient(), BigtableInstanceAdminClient())
    except GoogleAuthError as error:
        raise no_credentials(error) from error
    with admin.tables, admin.instances:
        yield admin


async def verify_on_open(at: BigtableSettings, *, writes: bool = True, logged: bool = True) -> frozenset[str] | None:
    """Raises `ConfigurationError` unless tables, families, GC rules and app profile are right, one sentence a line.

    `writes`, `logged`: as in `tables_of`. Returns the families of the table of objects; None: it may not be looked at.

    It only reads, with `bigtable.tables.get` and `bigtable.appProfiles.get`, both in roles/bigtable.user. What could
    not be verified is logged once, and the store opens all the same. `UnavailableError`: no answer. A call waits 5 s at
    most, and after the first one without an answer no other is made.
    """

    def look() -> tuple[list[Notice], Table | None]:
        with open_admin(at, tables_of(at, writes=writes, logged=logged)) as admin:
            return [*look_at_tables(admin), *look_at_profile(admin)], admin.seen.get(at.table)

    findings, objects = await in_thread(look, CapacityLimiter(1), abandon_on_cancel=True)
    if wrong := dict.fromkeys(problems(findings)):
        raise ConfigurationError("\n".join(wrong))
    for finding in findings:
        if finding.kind is NoticeKind.NOTE:
            (events.info if at.emulator_host else events.warning)("schema_note", finding.sentence)
    return None if objects is None else frozenset(objects.column_families)


# --- tables --------------------------------------------------------------------------------------


def look_at_tables(admin: Admin) -> Iterator[Notice]:
    """The findings about each table that must be there, with their mends."""
    for name, families in admin.wanted.items():
        try:
            table = _table(admin, name)
        except NotFound:
            if not _instance_exists(admin):
                yield problem(_no_instance(admin.at))
                return
            yield _missing_table(admin, name, families)
        except (Forbidden, MethodNotImplemented) as error:
            yield note(f"table {name} could not be verified: grant roles/bigtable.user to this identity ({_said(error)})")
        else:
            yield from _look_at_families(admin, name, table, families)


def _missing_table(admin: Admin, name: str, families: Mapping[str, GcRule]) -> Notice:
    table = Table(column_families={family: ColumnFamily(gc_rule=rule) for family, rule in families.items()})
    create = Mend(("create", "created"), f"table {name} with {_described(families)}", lambda: _mending(
        lambda: admin.tables.create_table(parent=admin.instance, table_id=name, table=table, retry=None, timeout=CREATE_S)
    ))
    cure = "run 'tiered provision', or correct the names in the section bigtable"
    return problem(f"there is no table {name} in {admin.instance}: {cure}", create)


def _look_at_families(admin: Admin, name: str, table: Table, families: Mapping[str, GcRule]) -> Iterator[Notice]:
    fine = []
    for family, wanted in families.items():
        if family not in table.column_families:
            add = _modify(admin, name, Modification(id=family, create=ColumnFamily(gc_rule=wanted)))
            mend = Mend(("add", "added"), f"family {family} to table {name}, GC rule {describe(wanted)}", add)
            yield problem(f"table {name} has no family {family}: run 'tiered provision'", mend)
            continue
        rule = table.column_families[family].gc_rule
        rules = f"the GC rule {describe(rule)} of family {family} of table {name}"
        if destroys := harm(family, rule):
            change = _modify(admin, name, Modification(id=family, update=ColumnFamily(gc_rule=wanted)))
            mend = Mend(("change", "changed"), f"{rules} to {describe(wanted)}, because it {destroys}", change)
            yield problem(f"{rules} {destroys}: run 'tiered provision' to make it {describe(wanted)}", mend)
        elif leaves := waste(family, rule):
            yield note(f"{rules} {leaves}: run '{_set_rule(admin.at, name, family, wanted)}'")
        else:
            fine.append(f"{family} ({describe(rule)})")
    if fine:
        yield ok(f"table {name} has {', '.join(fine)}")


def _table(admin: Admin, name: str) -> Table:
    table = admin.look(lambda: admin.tables.get_table(name=admin.table(name), retry=None, timeout=CALL_S))
    admin.seen[name] = table
    return table


def _modify(admin: Admin, name: str, *modifications: Modification) -> Callable[[], object]:
    return lambda: _mending(lambda: admin.tables.modify_column_families(
        name=admin.table(name), modifications=list(modifications), retry=None, timeout=CREATE_S
    ))


def switch_collection_on(admin: Admin) -> None:
    """Makes an emulator collect garbage.

    It begins only after a first ModifyColumnFamilies, so it gets one that changes nothing.
    """
    for name, families in admin.wanted.items():
        present = _table(admin, name).column_families
        _modify(admin, name, *(Modification(id=family, update=present[family]) for family in families))()


# --- the instance and its app profile ------------------------------------------------------------


def _instance_exists(admin: Admin) -> bool:
    """Whether the instance exists, as far as this identity may know. An emulator has no instances and accepts any name.
    """
    try:
        admin.look(lambda: admin.instances.get_instance(name=admin.instance, retry=None, timeout=CALL_S))
    except NotFound:
        return False
    except (Forbidden, MethodNotImplemented):
        return True
    return True


def look_at_profile(admin: Admin) -> Iterator[Notice]:
    """The findings about the app profile, with their mends."""
    name = admin.at.app_profile
    try:
        profile = admin.look(lambda: admin.instances.get_app_profile(
            name=f"{admin.instance}/appProfiles/{name}", retry=None, timeout=CALL_S
        ))
    except NotFound:
        yield _missing_profile(admin)
    except Forbidden as error:
        yield note(f"app profile {name} could not be verified: grant bigtable.appProfiles.get ({_said(error)})")
    except MethodNotImplemented:
        yield note(f"app profile {name} could not be verified: this server has none, as an emulator")
    else:
        yield _judged_profile(admin.at, profile)


def _judged_profile(at: BigtableSettings, profile: AppProfile) -> Notice:
    routing = profile.single_cluster_routing
    single = "single_cluster_routing" in profile
    if "data_boost_isolation_read_only" in profile:
        return problem(f"app profile {at.app_profile} is for Data Boost, which only reads: name another in the settings")
    if single and routing.allow_transactional_writes:
        return ok(f"app profile {at.app_profile} routes to cluster {routing.cluster_id} with single-row transactions")
    wrong = "does not allow single-row transactions" if single else "routes to any cluster, which excludes single-row transactions"
    command = _profile_command("update", at, routing.cluster_id or "CLUSTER")
    return problem(f"app profile {at.app_profile} {wrong}: run '{command}', or name another in bigtable.app_profile")


def _missing_profile(admin: Admin) -> Notice:
    """The finding for a missing app profile.

    A profile that is not called `default`, in an instance of one cluster, can be made without asking which cluster it
    is for.
    """
    at = admin.at
    try:
        found = admin.look(lambda: admin.instances.list_clusters(parent=admin.instance, retry=None, timeout=CALL_S)).clusters
    except NotFound:
        return problem(_no_instance(at))
    except (Forbidden, MethodNotImplemented):
        found = []
    clusters = [cluster.name.rpartition("/")[2] for cluster in found]
    missing = f"there is no app profile {at.app_profile} in {admin.instance}"
    if len(clusters) != 1 or at.app_profile == "default":
        return problem(f"{missing}: run '{_profile_command('create', at, clusters[0] if len(clusters) == 1 else 'CLUSTER')}'")
    [cluster] = clusters
    routing = AppProfile.SingleClusterRouting(cluster_id=cluster, allow_transactional_writes=True)
    what = f"app profile {at.app_profile}, routed to cluster {cluster} with single-row transactions"
    create = Mend(("create", "created"), what, lambda: _mending(lambda: admin.instances.create_app_profile(
        parent=admin.instance, app_profile_id=at.app_profile, retry=None, timeout=CREATE_S,
        app_profile=AppProfile(description="the store's: tiered", single_cluster_routing=routing),
    )))
    return problem(f"{missing}: run 'tiered provision'", create)


def look_at_permissions(admin: Admin) -> Iterator[Notice]:
    """What this identity may do with the rows of each table that exists."""
    for name in admin.wanted:
        try:
            held = _held(admin, name)
        except NotFound:
            continue
        except (Forbidden, MethodNotImplemented) as error:
            yield note(f"the permissions on table {name} could not be verified ({_said(error)})")
            continue
        if lacking := [permission for permission in PERMISSIONS if permission not in held]:
            yield problem(f"this identity lacks {' and '.join(lacking)} on table {name}: grant roles/bigtable.user")
        else:
            yield ok(f"rows of table {name} may be read and written")


def excess_of(at: BigtableSettings) -> list[str]:
    """What this identity may do that no writer needs. `UnavailableError`: the service did not tell. Blocks."""
    with open_admin(at) as admin:
        try:
            held = _held(admin, at.table, list(EXCESS))
        except (NotFound, Forbidden, MethodNotImplemented) as error:
            raise UnavailableError(f"the permissions on table {at.table} could not be asked for ({_said(error)})") from error
    return [words for permission, words in EXCESS.items() if permission in held]


def _held(admin: Admin, name: str, wanted: Sequence[str] = PERMISSIONS) -> list[str]:
    request = {"resource": admin.table(name), "permissions": wanted}
    return list(admin.look(lambda: admin.tables.test_iam_permissions(request=request, retry=None, timeout=CALL_S)).permissions)


# --- words ---------------------------------------------------------------------------------------


def inspect_tables(bigtable: BigtableSettings, *, logged: bool) -> Iterator[Notice]:
    """The findings about tables, application profile and permissions. Blocks. `UnavailableError`: no answer."""
    with open_admin(bigtable, tables_of(bigtable, logged=logged)) as admin:
        yield from look_at_tables(admin)
        yield from look_at_profile(admin)
        yield from look_at_permissions(admin)


def provision_tables(bigtable: BigtableSettings, *, dry_run: bool = False, logged: bool = True, collects: bool = True) -> Iterator[Notice]:
    """Makes and mends what `inspect_tables` finds, without permissions. `logged`: with the log's table. Blocks.

    `collects` False: a table that is made has families without rules, and keeps all.
    """
    wanted = tables_of(bigtable, logged=logged)
    if not collects:
        wanted = {name: dict.fromkeys(families, GcRule()) for name, families in wanted.items()}
    with open_admin(bigtable, wanted) as admin:
        results = [carry_out(finding, dry_run=dry_run) for finding in [*look_at_tables(admin), *look_at_profile(admin)]]
        yield from results
        if bigtable.emulator_host is not None and collects and not dry_run and not problems(results):
            switch_collection_on(admin)


def hand_back_table(bigtable: BigtableSettings, *, dry_run: bool = False) -> Iterator[Notice]:
    """Removes the family of marks, and with it every mark, from the table of objects. Blocks.

    It is one step of the service. Rows that had only marks are gone then. Every request of ours that still arrives and
    would change what a row holds names this family, so the service refuses it as a whole.
    """
    name = bigtable.table
    with open_admin(bigtable, {name: {}}) as admin:
        try:
            table = _table(admin, name)
        except NotFound:
            yield problem(f"there is no table {name} in {admin.instance}: correct the names in the section bigtable")
            return
        except (Forbidden, MethodNotImplemented) as error:
            yield problem(f"table {name} may not be looked at: grant roles/bigtable.admin ({_said(error)})")
            return
        if MARKS not in table.column_families:
            yield ok(f"table {name} has no family {MARKS}: no store of this software can write there")
            return
        what = f"family {MARKS}, all marks, from table {name}: no store of this software can write there now"
        remove = Mend(("remove", "removed"), what, _modify(admin, name, Modification(id=MARKS, drop=True)))
        yield carry_out(problem(f"table {name} has marks", remove), dry_run=dry_run)


def table_names(at: BigtableSettings) -> list[str]:
    """The names of all tables of the instance. Blocks. `UnavailableError`: no answer."""
    with open_admin(at) as admin:
        listed = admin.look(lambda: list(admin.tables.list_tables(parent=admin.instance, retry=None, timeout=CALL_S)))
        return [each.name.rpartition("/")[2] for each in listed]


def delete_table(at: BigtableSettings, name: str) -> None:
    """Deletes a table, if there is one. Blocks. `UnavailableError`: it may be there still."""
    with open_admin(at) as admin:
        try:
            admin.look(lambda: admin.tables.delete_table(name=admin.table(name), retry=None, timeout=CREATE_S))
        except NotFound:
            return
        except Forbidden as error:
            raise ConfigurationError(f"table {name} may not be deleted: grant roles/bigtable.admin ({_said(error)})") from error


def _mending(call: Callable[[], object]) -> None:
    try:
        call()
    except (GoogleAPICallError, GoogleAuthError) as error:
        raise MendFailedError(_said(error)) from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _described(families: Mapping[str, GcRule]) -> str:
    return ", ".join(f"{family} ({describe(rule)})" for family, rule in families.items())


def _set_rule(at: BigtableSettings, table: str, family: str, rule: GcRule) -> str:
    return f"cbt -project {at.project} -instance {at.instance} setgcpolicy {table} {family} {describe(rule)}"


def _profile_command(verb: str, at: BigtableSettings, cluster: str) -> str:
    where = f"--project={at.project} --instance={at.instance}"
    return f"gcloud bigtable app-profiles {verb} {at.app_profile} {where} --route-to={cluster} --transactional-writes"


def _no_instance(at: BigtableSettings) -> str:
    cluster = f"id={at.instance}-1,zone=ZONE"
    return (
        f"there is no Bigtable instance {at.instance} in project {at.project}: correct bigtable.instance, or run "
        f"'gcloud bigtable instances create {at.instance} --project={at.project} --display-name={at.instance} --cluster-config={cluster}'"
    )
