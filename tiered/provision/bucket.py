"""Looks at the bucket of the long-term tier, and makes one for `tiered provision`.

    a bucket of ours     uniform access, no public access, expired blobs deleted a day after their deadline, uploads in
                         parts ended after a month
    its owner            a marker that says which store's blobs these are (`tiered.buckets.owners`)
    not touched          soft delete (a week, by default of the service) and versions: what they keep is a safety net,
                         and costs; a finding says how to switch it off

An existing bucket gets a marker, and is not changed otherwise. Each setting that it lacks would either delete something
or lock somebody out, so the finding gives the command for it. A marker is written at once only where nothing lies yet.
If two write one at the same time, the service takes the first, and the second is a problem that says so. Problems are
settings that lose blobs (a lifecycle rule that deletes live ones) or that keep garbage for ever (retention, holds), and
another owner.

*Failure*: what this identity may not look at is a note. A service that does not answer is `UnavailableError`, and
missing credentials are `ConfigurationError`; both say it in one sentence. Every call is made once: with its own
retries, the client would take two minutes to report a wrong address. The functions block: use worker threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from google.api_core.exceptions import Forbidden, GoogleAPICallError, MethodNotImplemented, NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Bucket, Client

from changelog.base.errors import UnavailableError, no_credentials
from tiered.buckets.owners import AFTER_OWNERS, OWNER_FIELDS, OWNERS, decode_markers, encode_marker, marker_name, own_marker, place
from tiered.provision.findings import Mend, MendFailedError, Notice, NoticeKind, Provisioning, carry_out, note, ok, problem
from tiered.provision.owner import settled, to_give
from tiered.provision.schema import (
    DAYS_AFTER_DEADLINE,
    collects_expired,
    collects_parts,
    concerns_some_names,
    deletes_at_deadline,
    deletes_live_blobs,
    ends_parts_early,
    lifecycle_rule,
    may_concern,
    parts_rule,
)
from tiered.services.capabilities import PARTS_DAYS_MAX
from tiered.settings import GcsSettings

ONCE: Mapping[str, Any] = {"retry": None, "timeout": (5.0, 10.0)}
"""No retries; seconds to connect, and seconds without any data."""

PERMISSIONS = (
    "storage.multipartUploads.abort", "storage.multipartUploads.create", "storage.multipartUploads.list",
    "storage.multipartUploads.listParts",
    "storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list", "storage.objects.update",
)
EXCESS: Mapping[str, str] = {
    "storage.buckets.delete": "may delete the bucket",
    "storage.buckets.setIamPolicy": "may give others rights on the bucket",
    "storage.buckets.update": "may change the bucket's lifecycle, versions, soft delete and retention",
    "storage.objects.setIamPolicy": "may give others rights on single objects",
}
"""What no writer needs, as the rest of a sentence about an identity."""
DAY_S = 86_400

NO_ANSWER = (GoogleAPICallError, GoogleAuthError, OSError)
"""The errors that the client raises. Those of `requests` are kinds of OSError."""


@contextmanager
def open_client(gcs: GcsSettings, project: str | None) -> Iterator[Client]:
    """A client of the service, or of the emulator at `gcs.endpoint`: without credentials, and past any proxy setting.
    """
    if gcs.endpoint is not None:
        nobody = AnonymousCredentials()  # type: ignore[no-untyped-call]  # the package's types leave out its constructor
        session = AuthorizedSession(nobody)  # type: ignore[no-untyped-call]  # as above
        session.trust_env = False
        client = Client(project or "none", nobody, client_options={"api_endpoint": gcs.endpoint}, _http=session)
    else:
        try:
            client = Client(project)
        except GoogleAuthError as error:
            raise no_credentials(error) from error
    with closing(client):
        yield client


def inspect_bucket(gcs: GcsSettings, project: str | None, owner: str | None) -> Iterator[Notice]:
    """The findings about the bucket. `owner` None: the rows did not tell whose blobs they are. Blocks."""
    with open_client(gcs, project) as client:
        yield from look_at_bucket(client, gcs, owner or "this store", None)
        if owner is not None:
            yield from look_at_owner(client, gcs, owner, Provisioning())
        if gcs.endpoint is None:
            yield from look_at_permissions(client, gcs)


def provision_bucket(gcs: GcsSettings, project: str | None, owner: str, wanted: Provisioning) -> Iterator[Notice]:
    """Makes the bucket if there is none, and the marker of its owner. Blocks."""
    with open_client(gcs, project) as client:
        for finding in look_at_bucket(client, gcs, owner, wanted.location):
            yield carry_out(finding, dry_run=wanted.dry_run)
        for finding in look_at_owner(client, gcs, owner, wanted):
            yield carry_out(finding, dry_run=wanted.dry_run)


def look_at_bucket(client: Client, gcs: GcsSettings, owner: str, location: str | None) -> Iterator[Notice]:
    """What is wrong with the bucket, or that nothing is. `UnavailableError`: GCS does not answer.

    `owner`: of a bucket that is made, as in `BigtableSettings`. `location`: where a missing bucket would be made; an
    emulator needs none.
    """
    try:
        bucket = client.get_bucket(gcs.bucket, **ONCE)
    except NotFound:
        yield _missing_bucket(client, gcs, owner, location)
        return
    except (Forbidden, MethodNotImplemented) as error:
        yield note(f"bucket {gcs.bucket} could not be verified: grant storage.buckets.get to this identity ({_said(error)})")
    except NO_ANSWER as error:
        raise _no_answer(gcs, error) from error
    else:
        yield from _judged(bucket, [rule for rule in bucket.lifecycle_rules if may_concern(rule, gcs.prefix)], gcs.prefix)


def location_of(gcs: GcsSettings, project: str | None) -> str:
    """Where the bucket is, such as EUROPE-WEST1. Empty: this identity may not ask. Blocks."""
    with open_client(gcs, project) as client:
        try:
            return str(client.get_bucket(gcs.bucket, **ONCE).location or "")
        except NO_ANSWER:
            return ""


def _missing_bucket(client: Client, gcs: GcsSettings, owner: str, location: str | None) -> Notice:
    missing = f"there is no bucket {gcs.bucket}"
    if location is None and gcs.endpoint is None:
        return problem(f"{missing}: run 'tiered provision --location EU', or where it shall be for good")

    def create() -> None:
        bucket = client.bucket(gcs.bucket)
        bucket.iam_configuration.uniform_bucket_level_access_enabled = True
        bucket.iam_configuration.public_access_prevention = "enforced"
        bucket.lifecycle_rules = [lifecycle_rule(gcs.prefix), parts_rule(gcs.prefix)]
        try:
            client.create_bucket(bucket, location=location, **ONCE)
        except NO_ANSWER as error:
            raise MendFailedError(_said(error)) from error
        _mark(bucket, gcs, owner)

    where = f" in {location}" if location else ""
    what = (
        f"bucket {gcs.bucket}{where}: uniform access, no public access, expired blobs deleted {DAYS_AFTER_DEADLINE} day after their"
        f" deadline, uploads in parts ended after {PARTS_DAYS_MAX} days, everything deleted kept, and billed, for 7 more days by the"
        f" service's default (soft delete); it belongs to {owner}"
    )
    return problem(f"{missing}: run 'tiered provision', or correct gcs.bucket", Mend(("create", "created"), what, create))


def _judged(bucket: Bucket, rules: Sequence[Mapping[str, Any]], prefix: str) -> Iterator[Notice]:
    """What is wrong with the bucket, or that nothing is. `rules`: those that may concern names below the prefix."""
    amiss = [*_undeletable(bucket), *_by_lifecycle(bucket, rules, prefix), *_costly(bucket), *_open_to_others(bucket)]
    if not amiss:
        yield ok(f"bucket {bucket.name} is as it must be")
    elif all(finding.kind is NoticeKind.NOTE for finding in amiss):
        yield ok(f"bucket {bucket.name} can be used")
    yield from amiss


def _undeletable(bucket: Bucket) -> Iterator[Notice]:
    if bucket.retention_period:
        yield problem(
            f"bucket {bucket.name} keeps every blob for {bucket.retention_period} s, so garbage cannot be deleted: "
            f"run '{_update(bucket, '--clear-retention-period')}', or use another bucket"
        )
    if bucket.default_event_based_hold:
        yield problem(
            f"bucket {bucket.name} puts a hold on every blob, so none can be deleted: "
            f"run '{_update(bucket, '--no-default-event-based-hold')}'"
        )


def _by_lifecycle(bucket: Bucket, rules: Sequence[Mapping[str, Any]], prefix: str) -> Iterator[Notice]:
    for rule in rules:
        if deletes_live_blobs(rule):
            of = f"the lifecycle rule of bucket {bucket.name} with the condition {rule.get('condition', {})}"
            if concerns_some_names(rule, prefix):
                yield note(f"{of} deletes live blobs: remove it if their names may match")
            else:
                yield problem(f"{of} deletes live blobs: remove it")
        elif deletes_at_deadline(rule):
            yield note(
                f"bucket {bucket.name} deletes blobs at their deadline, when a reader whose clock is behind still wants them: "
                f"raise daysSinceCustomTime to {DAYS_AFTER_DEADLINE}"
            )
    if not collects_expired(rules, prefix):
        below = f", matchesPrefix: [{prefix}]" if prefix else ""
        yield note(
            f"bucket {bucket.name} keeps expired blobs for ever: "
            f"add the lifecycle rule {{action: Delete, condition: {{daysSinceCustomTime: {DAYS_AFTER_DEADLINE}{below}}}}}"
        )
    if not collects_parts(rules, prefix):
        below = f", matchesPrefix: [{prefix}]" if prefix else ""
        yield note(
            f"bucket {bucket.name} keeps, and bills, for ever what was uploaded in parts and never completed: "
            f"add the lifecycle rule {{action: AbortIncompleteMultipartUpload, condition: {{age: {PARTS_DAYS_MAX}{below}}}}}"
        )
    for rule in filter(ends_parts_early, rules):
        yield note(
            f"bucket {bucket.name} ends uploads in parts after {rule['condition'].get('age', 0)} days, which may be"
            f" before they are completed: raise age to {PARTS_DAYS_MAX}"
        )


def _costly(bucket: Bucket) -> Iterator[Notice]:
    if kept_s := int(bucket.soft_delete_policy.retention_duration_seconds or 0):
        yield note(
            f"bucket {bucket.name} keeps, and bills, what is deleted for {kept_s / DAY_S:g} days (soft delete), a safety net; "
            f"to do without, run '{_update(bucket, '--clear-soft-delete')}'"
        )
    if bucket.versioning_enabled:
        yield note(
            f"bucket {bucket.name} keeps a version of everything that is deleted, also of garbage: "
            f"run '{_update(bucket, '--no-versioning')}'"
        )


def _open_to_others(bucket: Bucket) -> Iterator[Notice]:
    if not bucket.iam_configuration.uniform_bucket_level_access_enabled:
        yield note(f"bucket {bucket.name} lets single blobs be shared: run '{_update(bucket, '--uniform-bucket-level-access')}'")
    if bucket.iam_configuration.public_access_prevention != "enforced":
        yield note(f"bucket {bucket.name} could be made public: run '{_update(bucket, '--public-access-prevention')}'")


# --- the owner -----------------------------------------------------------------------------------


def look_at_owner(client: Client, gcs: GcsSettings, owner: str, wanted: Provisioning) -> Iterator[Notice]:
    """Whose blobs the bucket holds below the prefix. Nothing if there is no bucket.

    `owner`: this store, as in `BigtableSettings`. `UnavailableError`: GCS does not answer.
    """
    bucket = client.bucket(gcs.bucket)
    try:
        listed = client.list_blobs(gcs.bucket, prefix=OWNERS, fields=OWNER_FIELDS, **ONCE)
        markers = decode_markers({"name": each.name, "generation": each.generation, "metadata": each.metadata} for each in listed)
        own, finding = own_marker(markers, gcs.prefix), settled(markers, gcs.bucket, gcs.prefix, owner, wanted.adopt_from)
        is_taken = finding is None and own is None and _holds_any(client, gcs)
    except NotFound:
        return
    except (Forbidden, MethodNotImplemented) as error:
        here = place(gcs.bucket, gcs.prefix)
        yield note(f"nobody can tell who owns {here}: grant storage.objects.list to this identity ({_said(error)})")
        return
    except NO_ANSWER as error:
        raise _no_answer(gcs, error) from error
    replaced = 0 if own is None else own.generation
    yield finding or to_give(own, gcs.bucket, gcs.prefix, owner, wanted, lambda: _mark(bucket, gcs, owner, replaced), is_taken=is_taken)


def _holds_any(client: Client, gcs: GcsSettings) -> bool:
    """Whether anything but markers lies below the prefix."""
    wanted: list[dict[str, str]] = [{"prefix": gcs.prefix}] if gcs.prefix else [{"end_offset": OWNERS}, {"start_offset": AFTER_OWNERS}]
    return any(
        True for where in wanted for _ in client.list_blobs(gcs.bucket, max_results=1, fields="items(name),nextPageToken", **where, **ONCE)
    )


def _mark(bucket: Bucket, gcs: GcsSettings, owner: str, replaced: int = 0) -> None:
    """Writes the marker, if there is none meanwhile, or if it still has the generation `replaced`."""
    marker = bucket.blob(marker_name(gcs.prefix))
    marker.metadata, text = encode_marker(gcs.bucket, gcs.prefix, owner)
    try:
        marker.upload_from_string(text, "text/plain; charset=utf-8", if_generation_match=replaced, checksum="crc32c", **ONCE)
    except PreconditionFailed:
        raise MendFailedError("its owner was changed at the same moment: run 'tiered check'") from None
    except NO_ANSWER as error:
        raise MendFailedError(_said(error)) from error


def look_at_permissions(client: Client, gcs: GcsSettings) -> Iterator[Notice]:
    """What this identity may do with blobs. Only the real service can say this; an emulator cannot."""
    try:
        held = client.bucket(gcs.bucket).test_iam_permissions(list(PERMISSIONS), **ONCE)
    except NotFound:
        return
    except NO_ANSWER as error:
        yield note(f"the permissions on bucket {gcs.bucket} could not be verified ({_said(error)})")
        return
    if lacking := [permission for permission in PERMISSIONS if permission not in held]:
        yield problem(f"this identity lacks {' and '.join(lacking)} on bucket {gcs.bucket}: grant roles/storage.objectUser")
    else:
        yield ok(f"blobs of bucket {gcs.bucket} may be read and written")


def excess_of(client: Client, gcs: GcsSettings) -> list[str]:
    """What this identity may do that no writer needs. `UnavailableError`: the service did not tell. Blocks."""
    try:
        held = client.bucket(gcs.bucket).test_iam_permissions(list(EXCESS), **ONCE)
    except NO_ANSWER as error:
        raise _no_answer(gcs, error) from error
    return [words for permission, words in EXCESS.items() if permission in held]


def _update(bucket: Bucket, flag: str) -> str:
    return f"gcloud storage buckets update gs://{bucket.name} {flag}"


def _no_answer(gcs: GcsSettings, error: Exception) -> UnavailableError:
    where = f"at {gcs.endpoint}" if gcs.endpoint else f"for bucket {gcs.bucket}"
    cure = "start it, or correct gcs.endpoint" if gcs.endpoint else "check the network and the credentials"
    return UnavailableError(f"GCS does not answer {where}: {cure} ({_said(error)})")


def _said(error: Exception) -> str:
    """The error in one line. For a failed connection only the system's own words, without the layers above it."""
    text = " ".join(str(error).split())
    by_system = re.search(r"\[Errno -?\d+\] [^\"')]+", text)
    return by_system[0] if by_system and isinstance(error, OSError) else text.rstrip(".")
