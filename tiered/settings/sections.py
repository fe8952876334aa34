"""The sections of the settings, one class each, and what a value may be: bounds, names, addresses, paths, secrets.

A docstring says what a setting means, where its name does not. `TUNING` marks what an operator need not choose. What
follows from a setting is a property beside it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from math import log2
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from changelog.base.errors import ConfigurationError
from changelog.postgres.dsn import parsed
from tiered.sinks import Place

BIGTABLE_EMULATOR, GCS_EMULATOR = "BIGTABLE_EMULATOR_HOST", "STORAGE_EMULATOR_HOST"
"""Google's own variables. If one is set, Google's client libraries connect to an emulator, and so does this store."""

NAME_PREFIX_MAX = 200
TRIALS, TRIAL_DIGITS = "~prove/", 16
"""Below a store's prefix, the blobs of stores that `tiered prove` makes for a while. The store shows none of them.

Each is named by so many digits."""

CONNECTIONS_MAX = 256
MIB = 1024 * 1024
INLINE_BYTES_LIMIT = 8 * MIB
BLOB_BYTES_MAX = 5 * MIB**2
"""The largest blob that GCS takes."""
DAY_S = 86_400.0


def _no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("give a number")
    return value


Number = BeforeValidator(_no_truth)
Seconds = Annotated[float, Number, Field(ge=0.001, le=365 * DAY_S)]
"""A wait or an age. No wait is shorter than a millisecond, and a value above a year is a mistake."""

Period = Annotated[float, Number, Field(ge=0.01, le=365 * DAY_S)]
"""How often something is repeated. A shorter period would load the processor and the service for nothing."""

Lifetime = Annotated[float, Number, Field(ge=0.001, le=100 * 365 * DAY_S)]
"""How long an object lives, in seconds."""

Concurrency = Annotated[int, Number, Field(ge=1, le=10_000)]

TUNING = Field(json_schema_extra={"tuning": True})
"""Marks a setting of tuning: its default suits nearly every store. An example or production.md names all others."""


class Section(BaseModel):
    # Built when one is first made: `Settings` has all sections inside of its own validator.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)


def matching(pattern: str, wanted: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"give {wanted}")
        return value

    return AfterValidator(check)


def _url(endpoint: object) -> object:
    """An emulator of GCS as a URL. Google's variable may have no scheme."""
    return f"http://{endpoint}" if isinstance(endpoint, str) and "://" not in endpoint else endpoint


ProjectId = Annotated[str, matching(r"[a-z][a-z0-9.:-]{2,60}", "the id of a project, such as my-project-123")]
ResourceId = Annotated[str, matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}", "the id alone, without a path: letters, digits, -, _ and .")]
BucketName = Annotated[str, matching(
    r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]",
    "the name of a bucket alone, without gs://: 3 characters or more, lower-case letters, digits, -, _ and .",
)]  # fmt: skip
NamePrefix = Annotated[str, matching(
    rf"(?=[^~]{{0,{NAME_PREFIX_MAX}}}(~|\Z))([A-Za-z0-9_][A-Za-z0-9_.-]*/)*({TRIALS}[0-9a-f]{{{TRIAL_DIGITS}}}/)?",
    f"how the names begin, with a slash at the end, such as photos/: letters, digits, -, _ and ., {NAME_PREFIX_MAX} characters at most",
)]  # fmt: skip
Address = Annotated[str, matching(r"[^/\s@]+:[0-9]{1,5}", "host:port, such as 127.0.0.1:8086")]
Endpoint = Annotated[str, AfterValidator(lambda url: url.rstrip("/")), matching(
    r"https?://[^/\s@?#]+", "a URL without a path, a query or a user, such as http://127.0.0.1:9000"
)]  # fmt: skip


def checked_dsn(dsn: SecretStr) -> SecretStr:
    """The DSN as it is. It may hold a password, so no error shows it, or what the parser says of it."""
    parsed(dsn.get_secret_value())
    return dsn


def json_mapping(value: object) -> object:
    """A mapping. In the environment it is JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        raise ValueError('give a JSON object, such as {"name": "value"}, that says nothing twice') from None


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name is said twice")
    return found


def directory_path(value: object) -> object:
    """The path of a directory, from text or a `Path`. It is absolute, since the current directory may change later.

    `ValueError` says what is wrong with it.
    """
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
        raise ValueError("give the path of a directory")
    try:
        os.fsencode(value)
        return Path(value).expanduser().absolute()
    except UnicodeEncodeError:
        raise ValueError("give the path of a directory; this is no Unicode") from None
    except RuntimeError:
        raise ValueError("there is no such user, or no home directory is known: write the path out") from None
    except OSError:
        raise ValueError("it is relative, and the current directory is gone: write the path out") from None


def one_or_more(wanted: str) -> BeforeValidator:
    """Texts. One of them may be given alone; in the environment, a JSON list of them is text, too."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        if not value.lstrip().startswith("["):
            return (value,)
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(f"give {wanted}") from None

    return BeforeValidator(read)


def feed_place(text: str) -> str:
    try:
        place = Place.parse(text)
        return place.text if place.scheme else place.name
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    except OSError:
        raise ValueError("it is relative, and the current directory is gone: write the path out") from None


LINK_KEY_MIN, LINK_KEYS_MAX, LINK_ORIGINS_MAX = 32, 8, 64
"""A key of links has so many characters at least, and there are so many keys, and origins, at most."""

LINK_KEY_BITS_MIN = 64
"""So much must the characters of a key tell, by how often each is there (entropy). 32 hex digits by chance tell 110.
This finds what one finger types, and not what only looks like chance."""


def by_chance(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    wanted = f"give {LINK_KEY_MIN} characters or more by chance, such as what 'openssl rand -base64 32' prints"
    if len(text) < LINK_KEY_MIN:
        raise ValueError(wanted)
    bits = sum(log2(len(text) / text.count(each)) for each in text)
    if bits < LINK_KEY_BITS_MIN or text in (text + text)[1:-1]:
        raise ValueError(f"its characters are too few or repeat, so that it can be guessed: {wanted}")
    return key


class BigtableSettings(Section):
    """The high-volume tier in Bigtable, and the table of the changelog, which may be the same table.

    `timeout_s`: how long a call waits for its answer; a page of a scan may take longer. `emulator_host`: by default the
    variable `BIGTABLE_EMULATOR_HOST`; if neither is set, the real service.
    """

    project: ProjectId
    instance: ResourceId
    table: ResourceId = "tiered"
    changelog_table: ResourceId = "tiered-changelog"
    app_profile: ResourceId = "default"
    connections: Annotated[int, Number, Field(ge=1, le=64)] = 4
    timeout_s: Annotated[Seconds, TUNING] = 10.0
    emulator_host: Address | None = Field(default_factory=lambda: os.environ.get(BIGTABLE_EMULATOR) or None, validate_default=True)

    @property
    def owner(self) -> str:
        """How a bucket names the store whose blobs it holds: its table of objects, by its full resource name."""
        return f"projects/{self.project}/instances/{self.instance}/tables/{self.table}"


class GcsSettings(Section):
    """The long-term tier in a bucket of GCS, or in a part of one.

    `prefix`: how the names of this store's blobs begin in the bucket. Empty: the whole bucket is this store's.
    `timeout_s`: how long an answer may take, and how long sending or receiving one chunk of a body may take.
    `endpoint`: by default the variable `STORAGE_EMULATOR_HOST`; if neither is set, the real service.
    """

    bucket: BucketName
    prefix: NamePrefix = ""
    connections_max: Concurrency = CONNECTIONS_MAX
    timeout_s: Annotated[Seconds, TUNING] = 10.0
    endpoint: Annotated[Endpoint, BeforeValidator(_url)] | None = Field(
        default_factory=lambda: os.environ.get(GCS_EMULATOR) or None, validate_default=True
    )


class PostgresSettings(Section):
    """The high-volume tier and the changelog in a schema of a PostgreSQL database, version 14 or newer.

    `dsn`: postgresql://user:password@host:port/database, with `sslmode` for TLS; several hosts, with commas between
    them, find the primary after a failover. It may hold a password, so it is never shown. `schema_name`: all tables
    and functions of the store are in it. `connections_max`: of each process. `timeout_s`: how long a call waits for its
    answer, and how long the server works on it at most. `prepared`: False where a pooler gives each transaction another
    connection and keeps no prepared statements (docs/decisions/services.md, 208).
    """

    dsn: Annotated[SecretStr, AfterValidator(checked_dsn)]
    schema_name: Annotated[str, matching(
        r"(?!pg_)[a-z_][a-z0-9_]{0,62}", "the name of a schema: lower-case letters, digits and _, 63 characters at most, not pg_…"
    )] = "tiered"  # fmt: skip
    connections_max: Annotated[int, Number, Field(ge=1, le=CONNECTIONS_MAX)] = 16
    timeout_s: Annotated[Seconds, TUNING] = 10.0
    prepared: bool = True

    @property
    def address(self) -> str:
        """Where the store is, without user, password and options: host:port/database/schema."""
        parts = urlsplit(self.dsn.get_secret_value())
        return f"{parts.netloc.rpartition('@')[2]}/{parts.path.strip('/')}/{self.schema_name}"


class OtherSettings(Section):
    """A tier of somebody else's package. `kind`: its name among the entry points of the group `tiered.kinds`.

    `options`: what that package wants to know. They are not shown, because they may hold a password.
    """

    kind: Annotated[str, matching(r"[a-z][a-z0-9_-]{0,49}", "the name of a kind: lower-case letters, digits, - and _")]
    options: Annotated[Mapping[str, Any], BeforeValidator(json_mapping), Field(repr=False, default_factory=dict)]


class S3Settings(Section):
    """The long-term tier in a bucket of an S3 service, or in a part of one. Credentials are found as AWS's tools do.

    `prefix`, `timeout_s`: as of `GcsSettings`. `endpoint`: None: AWS. `region`: None: what AWS's variables and files
    say. `addressing_style`: `path` or `virtual`; `auto` chooses. `whole_checksums` False: the service keeps no crc32c
    of a blob made of parts, or a wrong one; `tiered check` says so.
    """

    bucket: BucketName
    prefix: NamePrefix = ""
    region: Annotated[str, matching(r"[a-z0-9-]{1,40}", "the name of a region, such as eu-central-1")] | None = None
    endpoint: Endpoint | None = None
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    connections_max: Concurrency = CONNECTIONS_MAX
    timeout_s: Annotated[Seconds, TUNING] = 10.0
    whole_checksums: bool = True


class StoreSettings(Section):
    """How many operations a store accepts at once, and how long it tries.

    `concurrency_max`: bulk calls may hold three quarters of it, so that single operations find a slot. `payloads_max`:
    how many puts may read at once from payloads that are not in memory; by default twice `concurrency_max`.
    `payload_idle_s`: such a payload that gives no byte for so long ends its put; None: none does
    (docs/decisions/store.md, 151). `answer_budget_s`: how long an answer is sought; clean-up has a third of it.

    `upload_memory_bytes`: what parts of large blobs take at most together, with the ends of streams that are held in
    case they are cut off. What would take more goes up in one stream, or is not held (docs/decisions/services.md, 177
    and 180). `upload_age_max_s`: recovery gives up an open upload that nobody completes for so long.
    `unicode_metadata`: texts may be any Unicode, which other software shows garbled (docs/decisions/formats.md, 23).
    """

    concurrency_max: Concurrency = 64
    queue_max: Annotated[int, Number, Field(ge=0, le=1_000_000), TUNING] = 256
    queue_wait_s: Annotated[Seconds, TUNING] = 5.0
    payloads_max: Annotated[Concurrency | None, TUNING] = None
    payload_idle_s: Annotated[Seconds | None, TUNING] = 60.0
    answer_budget_s: Annotated[Seconds, TUNING] = 30.0
    drain_budget_s: Annotated[Seconds, TUNING] = 10.0
    upload_memory_bytes: Annotated[int, Number, Field(ge=0, le=BLOB_BYTES_MAX), TUNING] = 512 * MIB
    upload_age_max_s: Annotated[float, Number, Field(ge=1, le=28 * DAY_S), TUNING] = 7 * DAY_S
    unicode_metadata: Annotated[bool, TUNING] = False

    @property
    def bulk_max(self) -> int:
        """How many slots all bulk calls together may hold."""
        return -(-self.concurrency_max * 3 // 4)

    @property
    def cleanup_budget_s(self) -> float:
        return self.answer_budget_s / 3

    @property
    def open_payloads_max(self) -> int:
        """How many payloads that are not in memory may be open at once."""
        return 2 * self.concurrency_max if self.payloads_max is None else self.payloads_max

    @property
    def bulk_payloads_max(self) -> int:
        """How many of them all bulk calls together may have open: the same share as of the slots."""
        return max(1, self.open_payloads_max * self.bulk_max // self.concurrency_max)


class LeaseSettings(Section):
    """`expiry_s`: after how long without a renewal others may take over an entry.

    Its owner renews it three times as often, so that one lost renewal ends no lease.
    """

    expiry_s: Annotated[float, Number, Field(ge=0.03, le=365 * DAY_S), TUNING] = 30.0

    @property
    def heartbeat_interval_s(self) -> float:
        return self.expiry_s / 3


class RecoverySettings(Section):
    """How much recovery does at once, and how long it waits.

    A daemon works on `concurrency_max` entries at once, and begins `rate_per_s` of them in a second: by default about a
    quarter of a Bigtable node. It rests for `idle_s` between two passes, longer after failures and beside other
    daemons. An entry that failed `attempts_max` times is parked; waiting out `late_upload_grace_s` is no failure.
    """

    concurrency_max: Concurrency = 64
    rate_per_s: Annotated[float, Number, Field(ge=0.01, le=1_000_000)] = 300.0
    idle_s: Annotated[Period, TUNING] = 5.0
    attempts_max: Annotated[int, Number, Field(ge=1, le=1000), TUNING] = 5
    late_upload_grace_s: Annotated[Seconds, TUNING] = 900.0
    shutdown_budget_s: Annotated[Seconds, TUNING] = 20.0

    @property
    def pause_max_s(self) -> float:
        """The longest rest, and how often garbage is collected."""
        return 12 * self.idle_s


class FeedSettings(Section):
    """The change feed of live references (docs/feed.md). All services, daemons and the writer need the same `enabled`.

    `enabled`: entries of finished changes are kept until the feed has published them. `to`: where the writer delivers
    (`tiered feed run`): a directory or a URL (docs/feed-sinks.md), or a list of them (in the environment: a JSON list).
    `format`: of the files: json needs no
    other package, avro needs the extra `feed`. `poll_s`: how often the writer looks for changes. `progress_every_s`:
    how often the frontier advances at least, also without a change; after four times as long without a sign of life
    another writer takes over. `batch_max`: how many entries, rows and updates one transaction takes up, about.
    `reconcile_every_s`: how often all rows are compared with what is published. `journal_bytes_max`: how much waits for
    the slowest sink at most; then the writer pauses. `hold_max_s`: how long an entry, and the blob that its change
    replaced, waits for the feed at most; then recovery cleans up without it.
    """

    enabled: bool = False
    to: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(feed_place)], ...],
        one_or_more('one place, or a JSON list such as ["/var/feed", "gs://bucket/feed"]'), Field(repr=False),
    ] = ()  # fmt: skip
    format: Literal["json", "avro"] = "json"
    poll_s: Annotated[Period, TUNING] = 2.0
    progress_every_s: Annotated[Period, TUNING] = 30.0
    batch_max: Annotated[int, Number, Field(ge=1, le=10_000), TUNING] = 1000
    reconcile_every_s: Annotated[Period, TUNING] = 86_400.0
    journal_bytes_max: Annotated[int, Number, Field(ge=1 << 20, le=1 << 40), TUNING] = 1 << 30
    hold_max_s: Period = 86_400.0

    @property
    def takeover_s(self) -> float:
        """So a living writer is not taken for dead."""
        return 4 * self.progress_every_s


class DaemonSettings(Section):
    """What the recovery daemon shows to others, over HTTP (docs/http.md) and in its log (docs/logs.md).

    `http_port`: the TCP port of its HTTP server. None: it has no server. 0: any free port, which the log names.
    `http_host`: the address that the server listens on; everybody who reaches it may read. `show_objects`: whether the
    page and the JSON name objects. `audit_reports`: a directory with run directories of `tiered audit`, which the page
    lists. Their reports name objects, so the page links to them only if `show_objects` is set, too. `log_format`: lines
    of text for people, or one JSON object a line.
    """

    http_host: Annotated[str, matching(r"[A-Za-z0-9_.:%-]{1,253}", "an address or the name of a host, such as 127.0.0.1")] = "127.0.0.1"
    http_port: Annotated[int, Number, Field(ge=0, le=65_535)] | None = None
    show_objects: bool = False
    audit_reports: Annotated[Path | None, BeforeValidator(directory_path)] = None
    log_format: Literal["text", "json"] = "text"


class LinkSettings(Section):
    """Links to read or write an object, which the app of `tiered.asgi` answers (docs/guides/fastapi.md).

    `base_url`: where that app is mounted, as its users see it. `keys`: the secrets that links are signed with. The
    first one signs, and each is accepted: to rotate them, add the new one at the end everywhere, then move it to the
    front, and remove the old one when its last link has ended. `origins`: the sites whose scripts may use the links
    (CORS), such as `https://app.example.com`; `*`: any. Of either, one or a list (in the environment: a JSON list).
    """

    base_url: Annotated[str, matching(
        r"https?://[^/\s?#@]+(/[^\s?#]*)?",
        "the URL where the app is mounted, without a query or a user, such as https://files.example.com/links",
    ), AfterValidator(lambda url: url.rstrip("/"))]  # fmt: skip
    keys: Annotated[
        tuple[Annotated[SecretStr, AfterValidator(by_chance)], ...], Field(min_length=1, max_length=LINK_KEYS_MAX),
        one_or_more("one key, or a JSON list of keys"),
    ]  # fmt: skip
    origins: Annotated[
        tuple[Annotated[str, matching(
            r"\*|https?://[a-z0-9.\[\]:_-]+",
            "what a browser sends as Origin, such as https://app.example.com, without a path or a slash, or *",
        )], ...],
        Field(max_length=LINK_ORIGINS_MAX), one_or_more("one origin, or a JSON list of origins"),
    ] = ()  # fmt: skip


class RateSettings(Section):
    """How much one value of a scope may do in each process: as of `UsecaseSettings`."""

    requests_per_s: Annotated[float, Number, Field(ge=0.001, le=1_000_000)] | None = None
    bytes_per_s: Annotated[float, Number, Field(ge=1, le=1 << 40)] | None = None
    burst_s: Annotated[float, Number, Field(ge=0.001, le=DAY_S)] = 1.0


class UsecaseSettings(RateSettings):
    """What is allowed to the objects of one usecase.

    `requests_per_s`, `bytes_per_s`: what all its calls in one process may do together; bytes are those of payloads
    as they are stored, written and read. `burst_s`: what was not used for so long may be used at once.

    `time_to_live_default_s`, `time_to_idle_default_s`: how long an object lives that is put without an expiration; not
    both. `lifetime_max_s`: the longest time to live, or time to idle; objects without an end are refused, too.
    `object_bytes_max`: the largest payload, as stored. `closed`: no object is put, or copied to it; an upload that was
    begun before may be completed. `per_scope`: rates of each value of a scope, by the scope's name: `{org:
    {requests_per_s: 50}}` allows 50 to each org.
    """

    time_to_live_default_s: Lifetime | None = None
    time_to_idle_default_s: Lifetime | None = None
    lifetime_max_s: Lifetime | None = None
    object_bytes_max: Annotated[int, Number, Field(ge=0, le=BLOB_BYTES_MAX)] | None = None
    closed: bool = False
    per_scope: Mapping[str, RateSettings] = Field(default_factory=dict)

    @property
    def lifetime_default_s(self) -> float | None:
        return self.time_to_idle_default_s if self.time_to_live_default_s is None else self.time_to_live_default_s


OTHER_USECASES = "*"
"""The name of the policy for usecases that have none of their own."""
