"""Looks at the bucket of the long-term tier, and makes one for `tiered provision`.

    a bucket of ours     uniform access, no public access, expired blobs deleted a day after their deadline
    not touched          soft delete (a week, by default of the service) and versions: what they keep is a safety net,
                         and costs; a finding says how to switch it off

An existing bucket is never changed. Each setting that it lacks would either delete something or lock somebody out, so
the finding gives the command for it. Problems are settings that lose blobs (a lifecycle rule that deletes live ones) or
that keep garbage for ever (retention, holds).

*Failure*: what this identity may not look at is a note. A service that does not answer is `UnavailableError`, and
missing credentials are `ConfigurationError`; both say it in one sentence. Every call is made once: with its own
retries, the client would take two minutes to report a wrong address. The functions block: use worker threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from google.api_core.exceptions import Forbidden, GoogleAPICallError, MethodNotImplemented, NotFound
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Bucket, Client

from changelog.base.errors import UnavailableError, no_credentials
from tiered.provision.findings import Finding, Kind, Mend, MendFailedError
from tiered.provision.schema import (
    DAYS_AFTER_DEADLINE,
    LIFECYCLE_RULE,
    collects_expired,
    concerns_some_names,
    deletes_at_deadline,
    deletes_live_blobs,
)
from tiered.settings import GcsSettings

ONCE: Mapping[str, Any] = {"retry": None, "timeout": (5.0, 10.0)}
"""No retries; seconds to connect, and seconds without any data."""

PERMISSIONS = ("storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list", "storage.objects.update")
DAY_S = 86_400

NO_ANSWER = (GoogleAPICallError, GoogleAuthError, OSError)
"""The errors that the client raises. Those of `requests` are kinds of OSError."""


@contextmanager
def open_client(gcs: GcsSettings, project: str) -> Iterator[Client]:
    """A client of the service, or of the emulator at `gcs.endpoint`: without credentials, and past any proxy setting.
    """
    if gcs.endpoint is not None:
        nobody = AnonymousCredentials()  # type: ignore[no-untyped-call]  # the package's types leave out its constructor
        session = AuthorizedSession(nobody)  # type: ignore[no-untyped-call]  # as above
        session.trust_env = False
        client = Client(project, nobody, client_options={"api_endpoint": gcs.endpoint}, _http=session)
    else:
        try:
            client = Client(project)
        except GoogleAuthError as error:
            raise no_credentials(error) from error
    with closing(client):
        yield client


def look_at_bucket(client: Client, gcs: GcsSettings, location: str | None) -> Iterator[Finding]:
    """What is wrong with the bucket, or that nothing is. `UnavailableError`: GCS does not answer.

    `location`: where a missing bucket would be made; an emulator needs none.
    """
    try:
        bucket = client.get_bucket(gcs.bucket, **ONCE)
    except NotFound:
        yield _missing_bucket(client, gcs, location)
        return
    except (Forbidden, MethodNotImplemented) as error:
        yield Finding(Kind.NOTE, f"bucket {gcs.bucket} could not be verified: grant storage.buckets.get to this identity ({_said(error)})")
    except NO_ANSWER as error:
        where = f"at {gcs.endpoint}" if gcs.endpoint else f"for bucket {gcs.bucket}"
        cure = "start it, or correct gcs.endpoint" if gcs.endpoint else "check the network and the credentials"
        raise UnavailableError(f"GCS does not answer {where}: {cure} ({_said(error)})") from error
    else:
        yield from _judged(bucket, list(bucket.lifecycle_rules))


def _missing_bucket(client: Client, gcs: GcsSettings, location: str | None) -> Finding:
    missing = f"there is no bucket {gcs.bucket}"
    if location is None and gcs.endpoint is None:
        return Finding(Kind.PROBLEM, f"{missing}: run 'tiered provision --location EU', or where it shall be for good")

    def create() -> None:
        bucket = client.bucket(gcs.bucket)
        bucket.iam_configuration.uniform_bucket_level_access_enabled = True
        bucket.iam_configuration.public_access_prevention = "enforced"
        bucket.lifecycle_rules = [LIFECYCLE_RULE]
        try:
            client.create_bucket(bucket, location=location, **ONCE)
        except NO_ANSWER as error:
            raise MendFailedError(_said(error)) from error

    where = f" in {location}" if location else ""
    what = (
        f"bucket {gcs.bucket}{where}: uniform access, no public access, expired blobs deleted {DAYS_AFTER_DEADLINE} day after their"
        " deadline, everything deleted kept, and billed, for 7 more days by the service's default (soft delete)"
    )
    return Finding(Kind.PROBLEM, f"{missing}: run 'tiered provision', or correct gcs.bucket", Mend(("create", "created"), what, create))


def _judged(bucket: Bucket, rules: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """What is wrong with the bucket, or that nothing is."""
    amiss = [*_undeletable(bucket), *_by_lifecycle(bucket, rules), *_costly(bucket), *_open_to_others(bucket)]
    if not amiss:
        yield Finding(Kind.OK, f"bucket {bucket.name} is as it must be")
    elif all(finding.kind is Kind.NOTE for finding in amiss):
        yield Finding(Kind.OK, f"bucket {bucket.name} can be used")
    yield from amiss


def _undeletable(bucket: Bucket) -> Iterator[Finding]:
    if bucket.retention_period:
        yield Finding(
            Kind.PROBLEM, f"bucket {bucket.name} keeps every blob for {bucket.retention_period} s, so garbage cannot be deleted: "
            f"run '{_update(bucket, '--clear-retention-period')}', or use another bucket"
        )
    if bucket.default_event_based_hold:
        yield Finding(
            Kind.PROBLEM, f"bucket {bucket.name} puts a hold on every blob, so none can be deleted: "
            f"run '{_update(bucket, '--no-default-event-based-hold')}'"
        )


def _by_lifecycle(bucket: Bucket, rules: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for rule in rules:
        if deletes_live_blobs(rule):
            of = f"the lifecycle rule of bucket {bucket.name} with the condition {rule.get('condition', {})}"
            if concerns_some_names(rule):
                yield Finding(Kind.NOTE, f"{of} deletes live blobs: remove it if their names may match")
            else:
                yield Finding(Kind.PROBLEM, f"{of} deletes live blobs: remove it")
        elif deletes_at_deadline(rule):
            yield Finding(
                Kind.NOTE, f"bucket {bucket.name} deletes blobs at their deadline, when a reader whose clock is behind still wants them: "
                f"raise daysSinceCustomTime to {DAYS_AFTER_DEADLINE}"
            )
    if not collects_expired(rules):
        yield Finding(
            Kind.NOTE, f"bucket {bucket.name} keeps expired blobs for ever: "
            f"add the lifecycle rule {{action: Delete, condition: {{daysSinceCustomTime: {DAYS_AFTER_DEADLINE}}}}}"
        )


def _costly(bucket: Bucket) -> Iterator[Finding]:
    if kept_s := int(bucket.soft_delete_policy.retention_duration_seconds or 0):
        yield Finding(
            Kind.NOTE, f"bucket {bucket.name} keeps, and bills, what is deleted for {kept_s / DAY_S:g} days (soft delete), a safety net; "
            f"to do without, run '{_update(bucket, '--clear-soft-delete')}'"
        )
    if bucket.versioning_enabled:
        yield Finding(
            Kind.NOTE, f"bucket {bucket.name} keeps a version of everything that is deleted, also of garbage: "
            f"run '{_update(bucket, '--no-versioning')}'"
        )


def _open_to_others(bucket: Bucket) -> Iterator[Finding]:
    if not bucket.iam_configuration.uniform_bucket_level_access_enabled:
        yield Finding(
            Kind.NOTE, f"bucket {bucket.name} lets single blobs be shared: run '{_update(bucket, '--uniform-bucket-level-access')}'"
        )
    if bucket.iam_configuration.public_access_prevention != "enforced":
        yield Finding(
            Kind.NOTE, f"bucket {bucket.name} could be made public: run '{_update(bucket, '--public-access-prevention')}'"
        )


def look_at_permissions(client: Client, gcs: GcsSettings) -> Iterator[Finding]:
    """What this identity may do with blobs. Only the real service can say this; an emulator cannot."""
    try:
        held = client.bucket(gcs.bucket).test_iam_permissions(list(PERMISSIONS), **ONCE)
    except NotFound:
        return
    except NO_ANSWER as error:
        yield Finding(Kind.NOTE, f"the permissions on bucket {gcs.bucket} could not be verified ({_said(error)})")
        return
    if lacking := [permission for permission in PERMISSIONS if permission not in held]:
        yield Finding(Kind.PROBLEM, f"this identity lacks {' and '.join(lacking)} on bucket {gcs.bucket}: grant roles/storage.objectUser")
    else:
        yield Finding(Kind.OK, f"blobs of bucket {gcs.bucket} may be read and written")


def _update(bucket: Bucket, flag: str) -> str:
    return f"gcloud storage buckets update gs://{bucket.name} {flag}"


def _said(error: Exception) -> str:
    """The error in one line. For a failed connection only the system's own words, without the layers above it."""
    text = " ".join(str(error).split())
    by_system = re.search(r"\[Errno -?\d+\] [^\"')]+", text)
    return by_system[0] if by_system and isinstance(error, OSError) else text.rstrip(".")
