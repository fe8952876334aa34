"""Settings: numbers and names only. Components (backends, runtime) are passed to the code that uses them.

    load_settings(path)   YAML file, and over it the environment: TIERED_LEASE__EXPIRY_S=40 is lease.expiry_s
    Settings(…)           from code: exactly what is given; the environment is not read, except Google's two variables

Durations end in `_s` (seconds), sizes in `_bytes_max`, counts in `_max`. The constructor checks the bounds of every
number and how the numbers must relate to one another (`_relations`). So no running code has to check them again, and
within the bounds nothing hangs, spins or overflows. `TUNING` marks what an operator need not choose.

*Failure*: `ConfigurationError`, with one sentence for each problem: the setting, its value, where it came from and what
to do. An unknown key is refused, in the file and in the environment, so that a typo is never ignored.

A file holds mappings, lists, numbers and text. YAML's other kinds of values, such as dates, stay text. Aliases and tags
that are not YAML's own are refused. So a small file cannot expand into a large one, and no value becomes something
unexpected.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import log2
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)  # fmt: skip
from pydantic.fields import FieldInfo

from changelog.base.errors import ConfigurationError, InvalidRequestError
from changelog.postgres.dsn import parsed
from tiered.object_id import ObjectId
from tiered.places import Place
from tiered.protocol.backends import MARK_AGE_MAX_S
from tiered.protocol.capabilities import PART_BYTES_MIN
from tiered.text import check_flags, quoted

if TYPE_CHECKING:
    from yaml import Node

ENV_PREFIX = "TIERED_"
ENV_NESTED = "__"
ENV_CONFIG = "TIERED_CONFIG"
ENV_OTHERS = (ENV_CONFIG, "TIERED_SIM_")
"""Variables that are no settings begin so: the path of the settings file, and what `make sim` passes to the tests."""

BIGTABLE_EMULATOR, GCS_EMULATOR = "BIGTABLE_EMULATOR_HOST", "STORAGE_EMULATOR_HOST"
"""Google's own variables. If one is set, Google's client libraries connect to an emulator, and so does this store."""

_GOOGLES = {"bigtable.emulator_host": BIGTABLE_EMULATOR, "gcs.endpoint": GCS_EMULATOR}

DATABASE_NAME = "tiered.db"
"""The file of an embedded store's rows and changelog, in its directory."""

NAME_PREFIX_MAX = 200
CONNECTIONS_MAX = 256
MIB = 1024 * 1024
INLINE_BYTES_LIMIT = 8 * MIB
BLOB_BYTES_MAX = 5 * MIB**2
"""The largest blob that GCS takes."""
BEATS_PER_EXPIRY_MIN = 2.5
MARK_MARGIN_S = 3600.0

FILE_BYTES_MAX = 256 * 1024
PROBLEMS_MAX = 20
VALUE_SHOWN_MAX = 200
DAY_S = 86_400.0


def _no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("give a number")
    return value


_Number = BeforeValidator(_no_truth)
Seconds = Annotated[float, _Number, Field(ge=0.001, le=365 * DAY_S)]
"""A wait or an age. No wait is shorter than a millisecond, and a value above a year is a mistake."""

Period = Annotated[float, _Number, Field(ge=0.01, le=365 * DAY_S)]
"""How often something is repeated. A shorter period would load the processor and the service for nothing."""

Lifetime = Annotated[float, _Number, Field(ge=0.001, le=100 * 365 * DAY_S)]
"""How long an object lives, in seconds."""

Concurrency = Annotated[int, _Number, Field(ge=1, le=10_000)]
Attempts = Annotated[int, _Number, Field(ge=1, le=1000)]


TUNING = Field(json_schema_extra={"tuning": True})
"""Marks a setting of tuning: its default suits nearly every store, so no operator needs to choose it.

The others are chosen: an example or docs/production.md names each of them (a test).
"""


class _Section(BaseModel):
    # Built when one is first made: `Settings` has all sections inside of its own validator.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)


def _matching(pattern: str, wanted: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"give {wanted}")
        return value

    return AfterValidator(check)


def _url(endpoint: str) -> str:
    """The endpoint as a URL. Google's variable may have no scheme, or a slash at its end."""
    return (endpoint if "://" in endpoint else f"http://{endpoint}").rstrip("/")


ProjectId = Annotated[str, _matching(r"[a-z][a-z0-9.:-]{2,60}", "the id of a project, such as my-project-123")]
ResourceId = Annotated[str, _matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}", "the id alone, without a path: letters, digits, -, _ and .")]
BucketName = Annotated[str, _matching(
    r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]",
    "the name of a bucket alone, without gs://: 3 characters or more, lower-case letters, digits, -, _ and .",
)]  # fmt: skip
NamePrefix = Annotated[str, _matching(
    rf"|(?=.{{2,{NAME_PREFIX_MAX}}}\Z)([A-Za-z0-9_][A-Za-z0-9_.-]*/)+",
    f"how the names begin, with a slash at the end, such as photos/: letters, digits, -, _ and ., {NAME_PREFIX_MAX} characters at most",
)]  # fmt: skip
Address = Annotated[str, _matching(r"[^/\s@]+:[0-9]{1,5}", "host:port, such as 127.0.0.1:8086")]
Endpoint = Annotated[str, AfterValidator(_url), _matching(
    r"https?://[^/\s@?#]+", "a URL without a path, a query or a user, such as http://127.0.0.1:9000"
)]  # fmt: skip


class BigtableSettings(_Section):
    """The high-volume tier in Bigtable, and the table of the changelog, which may be the same table.

    `timeout_s`: how long a call waits for its answer; a page of a scan may take longer. `emulator_host`: by default the
    variable `BIGTABLE_EMULATOR_HOST`; if neither is set, the real service.
    """

    project: ProjectId
    instance: ResourceId
    table: ResourceId = "tiered"
    changelog_table: ResourceId = "tiered-changelog"
    app_profile: ResourceId = "default"
    connections: Annotated[int, _Number, Field(ge=1, le=64)] = 4
    timeout_s: Annotated[Seconds, TUNING] = 10.0
    emulator_host: Address | None = Field(default_factory=lambda: os.environ.get(BIGTABLE_EMULATOR) or None, validate_default=True)

    @property
    def owner(self) -> str:
        """How a bucket names the store whose blobs it holds: its table of objects, by its full resource name."""
        return f"projects/{self.project}/instances/{self.instance}/tables/{self.table}"


class GcsSettings(_Section):
    """The long-term tier in a bucket of GCS, or in a part of one.

    `prefix`: how the names of this store's blobs begin in the bucket. Empty: the whole bucket is this store's.
    `timeout_s`: how long an answer may take, and how long sending or receiving one chunk of a body may take.
    `endpoint`: by default the variable `STORAGE_EMULATOR_HOST`; if neither is set, the real service.

    `upload_lanes`: a blob of known size above `upload_lanes_from_bytes` goes up in so many streams at once, in parts of
    `upload_part_bytes`; 1: in one. Parts that go up so take `upload_memory_bytes` at most together, with the ends of
    streams that are held in case they are cut off. What would take more goes up in one stream, or is not held
    (docs/decisions/services.md, 177 and 180).
    """

    bucket: BucketName
    prefix: NamePrefix = ""
    connections_max: Concurrency = CONNECTIONS_MAX
    timeout_s: Annotated[Seconds, TUNING] = 10.0
    upload_lanes: Annotated[int, _Number, Field(ge=1, le=32), TUNING] = 8
    upload_lanes_from_bytes: Annotated[int, _Number, Field(ge=PART_BYTES_MIN, le=BLOB_BYTES_MAX), TUNING] = 64 * MIB
    upload_part_bytes: Annotated[int, _Number, Field(ge=PART_BYTES_MIN, le=1024 * MIB), TUNING] = 6 * MIB
    upload_memory_bytes: Annotated[int, _Number, Field(ge=0, le=BLOB_BYTES_MAX), TUNING] = 512 * MIB
    endpoint: Endpoint | None = Field(default_factory=lambda: os.environ.get(GCS_EMULATOR) or None, validate_default=True)


def _dsn(dsn: SecretStr) -> SecretStr:
    """The DSN as it is. It may hold a password, so no error shows it, or what the parser says of it."""
    parsed(dsn.get_secret_value())
    return dsn


SchemaName = Annotated[str, _matching(
    r"(?!pg_)[a-z_][a-z0-9_]{0,62}", "the name of a schema: lower-case letters, digits and _, 63 characters at most, not pg_…"
)]  # fmt: skip


class PostgresSettings(_Section):
    """The high-volume tier and the changelog in a schema of a PostgreSQL database, version 14 or newer.

    `dsn`: postgresql://user:password@host:port/database, with `sslmode` for TLS; several hosts, with commas between
    them, find the primary after a failover. It may hold a password, so it is never shown. `schema_name`: all tables
    and functions of the store are in it. `connections_max`: of each process. `timeout_s`: how long a call waits for its
    answer, and how long the server works on it at most. `prepared`: False where a pooler gives each transaction another
    connection and keeps no prepared statements (docs/decisions/services.md, 208).
    """

    dsn: Annotated[SecretStr, AfterValidator(_dsn)]
    schema_name: SchemaName = "tiered"
    connections_max: Annotated[int, _Number, Field(ge=1, le=CONNECTIONS_MAX)] = 16
    timeout_s: Annotated[Seconds, TUNING] = 10.0
    prepared: bool = True

    @property
    def address(self) -> str:
        """Where the store is, without user, password and options: host:port/database/schema."""
        parts = urlsplit(self.dsn.get_secret_value())
        return f"{parts.netloc.rpartition('@')[2]}/{parts.path.strip('/')}/{self.schema_name}"


def _json_mapping(value: object) -> object:
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


class OtherSettings(_Section):
    """A tier of somebody else's package. `kind`: its name among the entry points of the group `tiered.kinds`.

    `options`: what that package wants to know. They are not shown, because they may hold a password.
    """

    kind: Annotated[str, _matching(r"[a-z][a-z0-9_-]{0,49}", "the name of a kind: lower-case letters, digits, - and _")]
    options: Annotated[Mapping[str, Any], BeforeValidator(_json_mapping), Field(repr=False, default_factory=dict)]


class S3Settings(_Section):
    """The long-term tier in a bucket of an S3 service, or in a part of one. Credentials are found as AWS's tools do.

    `prefix`, `timeout_s` and the uploads: as of `GcsSettings`. `endpoint`: None: AWS. `region`: None: what AWS's
    variables and files say. `addressing_style`: `path` or `virtual`; `auto` chooses. `whole_checksums` False: the
    service keeps no crc32c of a blob made of parts, or a wrong one; `tiered check` says so.
    """

    bucket: BucketName
    prefix: NamePrefix = ""
    region: Annotated[str, _matching(r"[a-z0-9-]{1,40}", "the name of a region, such as eu-central-1")] | None = None
    endpoint: Endpoint | None = None
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    connections_max: Concurrency = CONNECTIONS_MAX
    timeout_s: Annotated[Seconds, TUNING] = 10.0
    whole_checksums: bool = True
    upload_lanes: Annotated[int, _Number, Field(ge=1, le=32), TUNING] = 8
    upload_lanes_from_bytes: Annotated[int, _Number, Field(ge=PART_BYTES_MIN, le=BLOB_BYTES_MAX), TUNING] = 64 * MIB
    upload_part_bytes: Annotated[int, _Number, Field(ge=PART_BYTES_MIN, le=1024 * MIB), TUNING] = 6 * MIB
    upload_memory_bytes: Annotated[int, _Number, Field(ge=0, le=BLOB_BYTES_MAX), TUNING] = 512 * MIB


class StoreSettings(_Section):
    """How many operations a store accepts at once, and how long it tries.

    `bulk_concurrency_max`: how many slots of `concurrency_max` all bulk calls together may hold; by default three
    quarters of them, so that single operations always find some. `away_after_s`: a service that has answered no call
    for so long is away, and calls to it fail at once until it answers (docs/decisions/store.md, 72).

    `payloads_max`: how many puts may read at once from payloads that are not in memory; by default twice
    `concurrency_max`. `payload_idle_s`: such a payload that gives no byte for so long ends its put; None: none does
    (docs/decisions/store.md, 151).

    `read_lanes_max`: how many ranges of one large object `save` reads at once; 1: one stream. `read_part_bytes_max`:
    how long each range is; an object that is not longer than one comes in one stream.

    `upload_age_max_s`: recovery gives up an open upload (`begin_multipart`) that nobody completes for so long.

    `unicode_metadata`: texts of metadata may be any Unicode. Other software that shares this format shows them garbled
    (docs/decisions/formats.md, 23).
    """

    concurrency_max: Concurrency = 64
    bulk_concurrency_max: Annotated[Concurrency | None, TUNING] = None
    queue_max: Annotated[int, _Number, Field(ge=0, le=1_000_000), TUNING] = 256
    queue_wait_s: Annotated[Seconds, TUNING] = 5.0
    payloads_max: Annotated[Concurrency | None, TUNING] = None
    payload_idle_s: Annotated[Seconds | None, TUNING] = 60.0
    answer_budget_s: Annotated[Seconds, TUNING] = 30.0
    away_after_s: Annotated[Seconds, TUNING] = 10.0
    cleanup_budget_s: Annotated[Seconds, TUNING] = 10.0
    drain_budget_s: Annotated[Seconds, TUNING] = 10.0
    upload_age_max_s: Annotated[float, _Number, Field(ge=1, le=28 * DAY_S), TUNING] = 7 * DAY_S
    read_attempts_max: Annotated[Attempts, TUNING] = 5
    read_lanes_max: Annotated[int, _Number, Field(ge=1, le=64), TUNING] = 8
    read_part_bytes_max: Annotated[int, _Number, Field(ge=1 << 18, le=1 << 40), TUNING] = 8 << 20
    unicode_metadata: Annotated[bool, TUNING] = False

    @property
    def bulk_max(self) -> int:
        """How many slots all bulk calls together may hold."""
        return -(-self.concurrency_max * 3 // 4) if self.bulk_concurrency_max is None else self.bulk_concurrency_max

    @property
    def open_payloads_max(self) -> int:
        """How many payloads that are not in memory may be open at once."""
        return 2 * self.concurrency_max if self.payloads_max is None else self.payloads_max

    @property
    def bulk_payloads_max(self) -> int:
        """How many of them all bulk calls together may have open: the same share as of the slots."""
        return max(1, self.open_payloads_max * self.bulk_max // self.concurrency_max)


class LeaseSettings(_Section):
    """How often an entry is renewed, and after how long without a renewal others may take it over."""

    heartbeat_interval_s: Annotated[Period, TUNING] = 10.0
    expiry_s: Annotated[Period, TUNING] = 30.0


class MarkSettings(_Section):
    """How old a change may be when its swap is sent. Rows remember a token for `MARK_AGE_MAX_S` only."""

    swap_age_max_s: Annotated[Seconds, TUNING] = 86_400.0
    swap_deadline_s: Annotated[Seconds, TUNING] = 30.0


class RecoverySettings(_Section):
    """How much recovery does at once, and how long it waits.

    A daemon works on `concurrency_max` entries at once, and begins `rate_per_s` of them in a second. At the default
    rate it takes about a fifth of a Bigtable node while there is work.

    An entry that failed `attempts_max` times is parked. Waiting out `late_upload_grace_s` does not count as a failure.

    Most passes look only at changes that are younger than `recent_s`. Every `full_pass_every_s` one pass looks at all
    changes. It finds those whose owner lived longer than `recent_s` and then died.
    """

    concurrency_max: Concurrency = 64
    page_max: Annotated[int, _Number, Field(ge=1, le=10_000), TUNING] = 100
    rate_per_s: Annotated[float, _Number, Field(ge=0.01, le=1_000_000)] = 300.0
    recent_s: Annotated[Seconds, TUNING] = 1800.0
    full_pass_every_s: Annotated[Period, TUNING] = 600.0
    idle_s: Annotated[Period, TUNING] = 5.0
    attempts_max: Annotated[Attempts, TUNING] = 5
    attempt_budget_s: Annotated[Seconds, TUNING] = 60.0
    backoff_max_s: Annotated[Period, TUNING] = 60.0
    late_upload_grace_s: Annotated[Seconds, TUNING] = 900.0
    shutdown_budget_s: Annotated[Seconds, TUNING] = 20.0
    collect_every_s: Annotated[Period, TUNING] = 60.0


def _path(value: object) -> object:
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


def _one_or_more(wanted: str) -> BeforeValidator:
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


def _place(text: str) -> str:
    try:
        place = Place.parse(text)
        return place.text if place.scheme else place.name
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    except OSError:
        raise ValueError("it is relative, and the current directory is gone: write the path out") from None


class FeedSettings(_Section):
    """The change feed of live references (docs/feed.md). All services, daemons and the writer need the same `enabled`.

    `enabled`: entries of finished changes are kept until the feed has published them. `to`: where the writer delivers
    (`tiered feed run`): the path of a directory, gs://bucket/prefix, s3://bucket/prefix, http(s)://host/path,
    kafka://broker:port/topic. One of them, or a list (in the environment: a JSON list).
    `format`: of the files: json needs no other package, avro needs the extra `feed`. `poll_s`: how often the writer
    looks for changes. `progress_every_s`: how often the frontier advances at least, also without a change. `batch_max`:
    how many entries, rows and updates one transaction takes up, about. `reconcile_every_s`: how often all rows are
    compared with what is published. `takeover_s`: after how long without a sign of life another writer takes over.
    `journal_bytes_max`: how much waits for the slowest sink at most; then the writer pauses. `hold_max_s`: how long an
    entry, and the blob that its change replaced, waits for the feed at most; then recovery cleans up without it.
    """

    enabled: bool = False
    to: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_place)], ...],
        _one_or_more('one place, or a JSON list such as ["/var/feed", "gs://bucket/feed"]'), Field(repr=False),
    ] = ()  # fmt: skip
    format: Literal["json", "avro"] = "json"
    poll_s: Annotated[Period, TUNING] = 2.0
    progress_every_s: Annotated[Period, TUNING] = 30.0
    batch_max: Annotated[int, _Number, Field(ge=1, le=10_000), TUNING] = 1000
    reconcile_every_s: Annotated[Period, TUNING] = 86_400.0
    takeover_s: Annotated[Period, TUNING] = 120.0
    journal_bytes_max: Annotated[int, _Number, Field(ge=1 << 20, le=1 << 40), TUNING] = 1 << 30
    hold_max_s: Period = 86_400.0


class DaemonSettings(_Section):
    """What the recovery daemon shows to others, over HTTP (docs/http.md) and in its log (docs/logs.md).

    `http_port`: the TCP port of its HTTP server. None: it has no server. 0: any free port, which the log names.
    `http_host`: the address that the server listens on; everybody who reaches it may read. `show_objects`: whether the
    page and the JSON name objects. `audit_reports`: a directory with run directories of `tiered audit`, which the page
    lists. Their reports name objects, so the page links to them only if `show_objects` is set, too. `log_format`: lines
    of text for people, or one JSON object a line. `alive_every_s`: how often a recovery says that it is alive, even if
    it has nothing to do.
    """

    http_host: Annotated[str, _matching(r"[A-Za-z0-9_.:%-]{1,253}", "an address or the name of a host, such as 127.0.0.1")] = "127.0.0.1"
    http_port: Annotated[int, _Number, Field(ge=0, le=65_535)] | None = None
    show_objects: bool = False
    audit_reports: Annotated[Path | None, BeforeValidator(_path)] = None
    log_format: Literal["text", "json"] = "text"
    alive_every_s: Annotated[Period, TUNING] = 300.0


LINK_KEY_MIN, LINK_KEYS_MAX, LINK_ORIGINS_MAX = 32, 8, 64
"""A key of links has so many characters at least, and there are so many keys, and origins, at most."""

LINK_KEY_BITS_MIN = 64
"""So much must the characters of a key tell, by how often each is there (entropy). 32 hex digits by chance tell 110.
This finds what one finger types, and not what only looks like chance."""


def _by_chance(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    wanted = f"give {LINK_KEY_MIN} characters or more by chance, such as what 'openssl rand -base64 32' prints"
    if len(text) < LINK_KEY_MIN:
        raise ValueError(wanted)
    bits = sum(log2(len(text) / text.count(each)) for each in text)
    if bits < LINK_KEY_BITS_MIN or text in (text + text)[1:-1]:
        raise ValueError(f"its characters are too few or repeat, so that it can be guessed: {wanted}")
    return key


class LinkSettings(_Section):
    """Links to read or write an object, which the app of `tiered.asgi` answers (docs/guides/fastapi.md).

    `base_url`: where that app is mounted, as its users see it. `keys`: the secrets that links are signed with. The
    first one signs, and each is accepted: to rotate them, add the new one at the end everywhere, then move it to the
    front, and remove the old one when its last link has ended. `origins`: the sites whose scripts may use the links
    (CORS), such as `https://app.example.com`; `*`: any. Of either, one or a list (in the environment: a JSON list).
    """

    base_url: Annotated[str, _matching(
        r"https?://[^/\s?#@]+(/[^\s?#]*)?",
        "the URL where the app is mounted, without a query or a user, such as https://files.example.com/links",
    ), AfterValidator(lambda url: url.rstrip("/"))]  # fmt: skip
    keys: Annotated[
        tuple[Annotated[SecretStr, AfterValidator(_by_chance)], ...], Field(min_length=1, max_length=LINK_KEYS_MAX),
        _one_or_more("one key, or a JSON list of keys"),
    ]  # fmt: skip
    origins: Annotated[
        tuple[Annotated[str, _matching(
            r"\*|https?://[a-z0-9.\[\]:_-]+",
            "what a browser sends as Origin, such as https://app.example.com, without a path or a slash, or *",
        )], ...],
        Field(max_length=LINK_ORIGINS_MAX), _one_or_more("one origin, or a JSON list of origins"),
    ] = ()  # fmt: skip


class RateSettings(_Section):
    """How much one value of a scope may do in each process: as of `UsecaseSettings`."""

    requests_per_s: Annotated[float, _Number, Field(ge=0.001, le=1_000_000)] | None = None
    bytes_per_s: Annotated[float, _Number, Field(ge=1, le=1 << 40)] | None = None
    burst_s: Annotated[float, _Number, Field(ge=0.001, le=DAY_S)] = 1.0


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
    object_bytes_max: Annotated[int, _Number, Field(ge=0, le=BLOB_BYTES_MAX)] | None = None
    closed: bool = False
    per_scope: Mapping[str, RateSettings] = Field(default_factory=dict)

    @property
    def lifetime_default_s(self) -> float | None:
        return self.time_to_idle_default_s if self.time_to_live_default_s is None else self.time_to_live_default_s


OTHER_USECASES = "*"
"""The name of the policy for usecases that have none of their own."""


_ALL_DEFAULTS: Any = Field(default_factory=dict, validate_default=True)
"""A section of which nothing is set."""


class Settings(_Section):
    """All settings of a store and of a recovery daemon. Frozen. The constructor raises `ConfigurationError`.

    Give either `directory` (embedded mode; it holds `tiered.db`, `blobs/` and `uploads/`), or what holds the rows
    (`bigtable` or `postgres`) and what holds the blobs (`gcs` or `s3`; beside `postgres`, also `directory`). `rows` and
    `blobs` are for kinds of somebody else's package. `changelog`: where the rows are, or `noop`. In Bigtable there is
    none by default, and the store warns about it when it opens. `instance`: the name of this process in the changelog,
    which no other process may have; by default the store makes one up. `usecases`: what is allowed to objects, by the
    name of their usecase; `"*"`: to those of each other one. In the environment it is one JSON object, which replaces
    all that the file says of them.
    """

    directory: Annotated[Path | None, BeforeValidator(_path)] = None
    bigtable: BigtableSettings | None = None
    postgres: PostgresSettings | None = None
    gcs: GcsSettings | None = None
    s3: S3Settings | None = None
    rows: OtherSettings | None = None
    blobs: OtherSettings | None = None
    changelog: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,49}$")] | None = Field(default_factory=lambda known: _changelog_of(known))
    instance: Annotated[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,100}$")] | None, TUNING] = None
    inline_bytes_max: Annotated[int, _Number, Field(gt=0, le=INLINE_BYTES_LIMIT)] = 1_048_576
    store: StoreSettings = _ALL_DEFAULTS
    lease: LeaseSettings = _ALL_DEFAULTS
    marks: MarkSettings = _ALL_DEFAULTS
    recovery: RecoverySettings = _ALL_DEFAULTS
    feed: FeedSettings = _ALL_DEFAULTS
    daemon: DaemonSettings = _ALL_DEFAULTS
    links: LinkSettings | None = None
    usecases: Annotated[Mapping[str, UsecaseSettings], BeforeValidator(_json_mapping)] = Field(default_factory=dict)

    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, *, _origins: Mapping[str, str] = MappingProxyType({}), **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError("\n".join(_sentences(type(self), error, _origins))) from None
        self._origins = dict(_origins)

    @model_validator(mode="after")
    def _related(self) -> Settings:
        if wrong := list(_relations(self)):
            raise ValueError("\n".join(wrong))
        return self

    @property
    def rows_kind(self) -> str:
        """What holds the rows: the name of a section, that of somebody else's kind, or `directory`."""
        return _holder(self, ROW_SECTIONS)

    @property
    def blobs_kind(self) -> str:
        """What holds the blobs, as `rows_kind`."""
        return _holder(self, BLOB_SECTIONS)

    @property
    def embedded(self) -> bool:
        """Whether rows and blobs are in the directory."""
        return self.rows_kind == self.blobs_kind == "directory"

    @property
    def logged(self) -> bool:
        """Whether a changelog is kept."""
        return self.changelog not in (None, NO_CHANGELOG)

    @property
    def changelog_kept(self) -> str:
        """The value of `changelog` that keeps one."""
        return "sqlite" if self.rows_kind == "directory" else self.rows_kind

    @property
    def lanes_at_once(self) -> int:
        """How many ranges all reads together may have open besides their first: a quarter of the connections."""
        return getattr(getattr(self, self.blobs_kind, None), "connections_max", CONNECTIONS_MAX) // 4

    def packed(self, *, secrets: bool = True) -> str:
        """These settings as text, for a process of the same work that opens the same store. It holds their secrets.

        `secrets` False: their entries are left out, and `unpacked` asks for what is missing.
        """
        check_flags(secrets=secrets)
        values = self.model_dump(mode="json")
        if self.postgres is not None:
            values["postgres"]["dsn"] = self.postgres.dsn.get_secret_value()
        if self.links is not None:
            values["links"]["keys"] = [key.get_secret_value() for key in self.links.keys]
        for section, secret in () if secrets else (("postgres", "dsn"), ("links", "keys")):
            (values[section] or {}).pop(secret, None)
        return json.dumps(values)

    @classmethod
    def unpacked(cls, text: str) -> Settings:
        """The settings of which this is what `packed` told."""
        return cls(**json.loads(text))

    def shown(self) -> dict[str, dict[str, Any]]:
        """Every setting by its key, such as `lease.expiry_s`: {"value": plain JSON, "from": where it was set}.

        Users, passwords and options are left out of the places of the feed.

        "from" is "default", "code", the path of the file, or the name of the environment variable.
        """
        values = self.model_dump(mode="json")
        return {key: {"value": _value(values, key), "from": self._origin(key)} for key in self._shown_keys()}

    @classmethod
    def tuning(cls) -> frozenset[str]:
        """Returns the keys of tuning, such as `lease.expiry_s`. An operator need not choose them."""
        return frozenset(key for key, field in _fields(cls) if field.json_schema_extra == TUNING.json_schema_extra)

    def _shown_keys(self) -> Collection[str]:
        """The keys of all settings. A section that is not set appears as its name only."""
        sections = ((key, key.partition(".")[0]) for key in _keys(type(self)))
        return dict.fromkeys(section if getattr(self, section) is None else key for key, section in sections)

    def _origin(self, key: str) -> str:
        section, _, name = key.rpartition(".")
        owner: BaseModel = getattr(self, section) if section else self
        if key in self._origins or name in owner.model_fields_set:
            return self._origins.get(key, "code")
        return _GOOGLES[key] if key in _GOOGLES and os.environ.get(_GOOGLES[key]) else "default"


def load_settings(
    path: str | Path | None, *, below: Mapping[str, Any] = MappingProxyType({}), below_from: str = "default"
) -> Settings:
    """Reads the settings file, if a path is given. The environment's variables take precedence over it.

    `below`: values to use where neither the file nor the environment sets one. `below_from`: where those values come
    from, as `Settings.shown` tells it. A relative path is relative to the directory that is the current one now. Raises
    `ConfigurationError`.
    """
    if not isinstance(path, str | Path | None):
        raise ConfigurationError(f"pass Settings(…), or the path of a settings file as str or pathlib.Path, not {_redacted(quoted(path))}")
    file = {} if path is None else _read(Path(path))
    variables = _variables()
    origins = dict.fromkeys(_named(below), below_from) | dict.fromkeys(_named(file), str(path)) | variables
    return Settings(_origins=origins, **_merged(_merged(below, file), _of_environment(variables)))


# --- relations -----------------------------------------------------------------------------------


ROW_SECTIONS, BLOB_SECTIONS = ("bigtable", "postgres", "rows"), ("gcs", "s3", "blobs")
"""The sections of `Settings` that hold rows, and those that hold blobs. What none of them holds is in the directory."""

NO_CHANGELOG = "noop"
_WHERE = {"directory": "a directory", "bigtable": "Bigtable", "postgres": "PostgreSQL"}


def _said(settings: Settings, sections: Sequence[str]) -> list[str]:
    return [name for name in sections if getattr(settings, name) is not None]


def _holder(settings: Settings, sections: Sequence[str]) -> str:
    name = next(iter(_said(settings, sections)), "directory")
    section = getattr(settings, name)
    return section.kind if isinstance(section, OtherSettings) else name


def _changelog_of(known: Mapping[str, Any]) -> str | None:
    """The default of `changelog`. `known`: the settings before it."""
    if known.get("postgres"):
        return "postgres"
    return "sqlite" if known.get("directory") and not any(known.get(name) for name in ROW_SECTIONS) else None


def _places(settings: Settings) -> Iterator[str]:
    """What is wrong about where rows and blobs are."""
    rows, blobs = _said(settings, ROW_SECTIONS), _said(settings, BLOB_SECTIONS)
    for found, what in ((rows, "rows"), (blobs, "blobs")):
        if len(found) > 1:
            yield f"{' and '.join(found)} are set, and each of them holds the {what}: remove all but one"
    for name, known in (("rows", ROW_SECTIONS), ("blobs", BLOB_SECTIONS)):
        other = getattr(settings, name)
        if other is not None and other.kind in (*known, "directory"):
            yield f"{name}.kind is {other.kind}, which is a setting of its own: give {other.kind} instead of {name}"
    if settings.directory is None and not rows and not blobs:
        yield (
            "directory is not set: give the directory that holds (or shall hold) tiered.db, blobs/ and uploads/,"
            " or a section for the rows (bigtable or postgres) and one for the blobs (gcs or s3)"
        )
    elif settings.directory is not None and (blobs or "bigtable" in rows):
        yield (
            f"directory and {' and '.join((*rows, *blobs))} are set: a store is either in a directory, or in services that all of its"
            " machines reach; remove one"
        )
    elif settings.directory is None and not blobs:
        yield f"{rows[0]} is set, and nothing that holds blobs: give the section gcs or s3 too"
    elif settings.directory is None and not rows:
        yield f"{blobs[0]} is set, and nothing that holds rows: give the section bigtable or postgres too"


def _policies(settings: Settings) -> Iterator[str]:
    """What is wrong about what usecases are allowed."""
    for name, policy in settings.usecases.items():
        key = _redacted(f"usecases.{name}")
        try:
            ObjectId("any" if name == OTHER_USECASES else name, tuple((scope, "any") for scope in policy.per_scope), "any").validate()
        except InvalidRequestError as error:
            yield f"{key} is for no object: {error}"
        if policy.time_to_live_default_s is not None and policy.time_to_idle_default_s is not None:
            yield f"{key} has time_to_live_default_s and time_to_idle_default_s: remove one"
        if policy.lifetime_max_s is not None and (policy.lifetime_default_s or 0) > policy.lifetime_max_s:
            yield (
                f"{key} has a default lifetime of {policy.lifetime_default_s:g} s and lifetime_max_s {policy.lifetime_max_s:g}, so it"
                " would refuse its own default: lower the default"
            )
        for scope, rates in policy.per_scope.items():
            if rates.requests_per_s is None and rates.bytes_per_s is None:
                yield f"{key}.per_scope.{_redacted(scope)} limits nothing: give it requests_per_s or bytes_per_s"


def _relations(settings: Settings) -> Iterator[str]:
    """One sentence for each relation between settings that does not hold."""
    lease, marks, store = settings.lease, settings.marks, settings.store
    yield from _places(settings)
    yield from _policies(settings)
    if settings.changelog not in (None, NO_CHANGELOG, settings.changelog_kept):
        yield (
            f"changelog is {settings.changelog}, but the rows are in {_WHERE.get(settings.rows_kind, settings.rows_kind)}, and it is kept"
            f" beside them: use {settings.changelog_kept} or {NO_CHANGELOG}"
        )
    if settings.feed.enabled and not settings.logged:
        yield (
            "feed.enabled is set, but the changelog keeps nothing, and the feed learns from it what was changed:"
            f" set changelog: {settings.changelog_kept}, or leave the feed out"
        )
    if settings.feed.takeover_s < 3 * settings.feed.progress_every_s:
        yield (
            f"feed.takeover_s ({settings.feed.takeover_s:g}) is less than 3 times feed.progress_every_s"
            f" ({settings.feed.progress_every_s:g}), so a living writer could be taken for dead: raise it"
        )
    if lease.expiry_s < BEATS_PER_EXPIRY_MIN * lease.heartbeat_interval_s:
        yield (
            f"lease.expiry_s ({lease.expiry_s:g}) is less than {BEATS_PER_EXPIRY_MIN:g} times lease.heartbeat_interval_s"
            f" ({lease.heartbeat_interval_s:g}), so one lost renewal could end a lease:"
            f" raise it to {BEATS_PER_EXPIRY_MIN * lease.heartbeat_interval_s:g}, or beat more often"
        )
    if store.bulk_max > store.concurrency_max:
        yield (
            f"store.bulk_concurrency_max ({store.bulk_max}) is more than store.concurrency_max ({store.concurrency_max}):"
            " bulk calls hold some of these slots, so lower it"
        )
    latest_s = marks.swap_age_max_s + marks.swap_deadline_s + MARK_MARGIN_S
    if latest_s >= MARK_AGE_MAX_S:
        yield (
            f"marks.swap_age_max_s + marks.swap_deadline_s + an hour ({latest_s:g}) is not below the {MARK_AGE_MAX_S} s that marks are"
            " kept, so a swap could arrive after its mark was collected: lower marks.swap_age_max_s"
        )


# --- sources -------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Any]:
    import yaml  # imported here, because many stores have no settings file

    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigurationError(f"the settings file {path} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: the path holds a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        instead = f"; for a store in this directory pass Settings(directory={str(path)!r})" if path.is_dir() else ""
        raise ConfigurationError(f"the settings file {path} cannot be read: {reason}{instead}") from None
    if len(text) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{path} has more than {FILE_BYTES_MAX // 1024} KiB, so it is no settings file")
    try:
        node = yaml.compose(text.decode("utf-8"), Loader=yaml.SafeLoader)
        values = None if node is None else _plain(node, set())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the settings file {path} is not YAML: {_wrong_yaml(error)}") from None
    except RecursionError:
        raise ConfigurationError(f"the settings file {path} is nested too deeply to hold settings") from None
    except _NoSettingError as error:
        raise ConfigurationError(f"the settings file {path}, line {error.line}: {error}") from None
    if not isinstance(values or {}, dict):
        raise ConfigurationError(f"the settings file {path} holds {_redacted(quoted(values))}, not a mapping such as 'directory: data'")
    # A key without a value sets nothing. A section whose lines are all commented out looks like this.
    return {key: value for key, value in (values or {}).items() if value is not None}


def _wrong_yaml(error: Exception) -> str:
    """What is wrong with the YAML, and in which line. PyYAML's own message would also quote the line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return " ".join(str(error).split()) if mark is None else f"line {mark.line + 1}: {problem}"


class _NoSettingError(Exception):
    """YAML that a settings file does not need, with its line. It never leaves this module."""

    def __init__(self, node: Node, sentence: str) -> None:
        super().__init__(sentence)
        self.line = node.start_mark.line + 1


def _plain(node: Node, seen: set[Node]) -> Any:
    """Mappings, lists, numbers and text.

    Each node is read once only, so aliases cannot expand a small file into a large one.
    """
    import yaml

    if node in seen:
        raise _NoSettingError(node, "write the value out a second time: aliases (*name) are not read")
    seen.add(node)
    if not node.tag.startswith("tag:yaml.org,2002:"):
        raise _NoSettingError(node, f"leave out the tag {_redacted(node.tag)}")
    match node:
        case yaml.MappingNode():
            return _mapping(node, seen)
        case yaml.SequenceNode():
            return [_plain(each, seen) for each in node.value]
        case _:
            return _scalar(node.tag.rpartition(":")[2], node.value)


def _mapping(node: Node, seen: set[Node]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for named, value in node.value:
        if not isinstance(named.value, str):
            raise _NoSettingError(named, "the name of a setting is text")
        if named.value in values:
            raise _NoSettingError(named, f"{_redacted(named.value)} is said twice: remove one")
        values[named.value] = _plain(value, seen)
    return values


def _scalar(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    try:
        return int(text) if kind == "int" else float(text) if kind == "float" else text
    except ValueError:  # YAML takes 1:30 for the number 90; here it stays text
        return text


def _variables() -> dict[str, str]:
    """The environment variable of each setting that is set there, by the setting's key."""
    known = {ENV_PREFIX + key.replace(".", ENV_NESTED).upper(): key for key in _keys(Settings)}
    # pydantic accepts variable names in any case. Here only upper case is known, so that other spellings are refused.
    said = [name for name in sorted(os.environ) if name.upper().startswith(ENV_PREFIX) and not name.upper().startswith(ENV_OTHERS)]
    if unknown := [name for name in said if name not in known]:
        raise ConfigurationError("\n".join(
            f"{_redacted(name)} is set in the environment but is no setting; the nearest is {_nearest(name.upper(), known)}"
            for name in unknown[:PROBLEMS_MAX]
        ))
    return {known[name]: name for name in said if os.environ[name]}


def _of_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """The values of these variables, section by section."""
    values: dict[str, Any] = {}
    for key, name in variables.items():
        section, dot, last = key.rpartition(".")
        (values.setdefault(section, {}) if dot else values)[last] = os.environ[name]
    return values


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings, merged section by section. `above` wins."""
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(below[name], dict) and isinstance(above[name], dict):
            merged[name] = _merged(below[name], above[name])
    return merged


# --- sentences -----------------------------------------------------------------------------------


def _sentences(model: type[BaseModel], error: ValidationError, origins: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each problem, for people, instead of pydantic's report."""
    found = error.errors(include_url=False)
    for problem in found[:PROBLEMS_MAX]:
        key = ".".join(str(part) for part in problem["loc"])
        where = f" ({origins[key]})" if key in origins else ""
        name, value = _redacted(key), _shown_value(problem["input"])
        message = str(problem.get("ctx", {}).get("error", problem["msg"]))
        match problem["type"]:
            case "default_factory_not_called":
                continue  # the value it would be computed from is wrong, and another sentence says so
            case _ if key == "feed.to" or key.startswith("feed.to."):
                yield f"{name}{where} is wrong, and not shown, because a place may hold a password: {message[0].lower()}{message[1:]}"
            case _ if key.startswith(("rows.options", "blobs.options")):
                yield f"{name}{where} is wrong, and not shown: {message[0].lower()}{message[1:]}"
            case _ if key == "links.keys" or key.startswith("links.keys."):
                is_wrong = "not set" if problem["type"] == "missing" else "wrong, and not shown"
                yield f"{name}{where} is {is_wrong}: {message[0].lower()}{message[1:]}"
            case "value_error" if not key:
                yield str(problem["ctx"]["error"])
            case "value_error":
                yield f"{name}{where} is {value}: {problem['ctx']['error']}"
            case "missing":
                yield f"{name} is not set: the section {key.rpartition('.')[0]} needs it"
            case "extra_forbidden":
                yield f"{name}{where} is no setting; the nearest is {_redacted(_nearest(key, _known_beside(key, model)))}"
            case "model_type":
                # Somebody may have put a place there, with its password, or a key.
                is_shown = "not" if key in ("feed", "links", "rows", "blobs") else f"{value}, not"
                yield f"{name}{where} is {is_shown} a section of settings"
            case _:
                yield f"{name}{where} is {value}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
    if len(found) > PROBLEMS_MAX:
        yield f"and {len(found) - PROBLEMS_MAX} problems more"


def _known_beside(key: str, model: type[BaseModel]) -> Collection[str]:
    """The settings of which one was meant by this key."""
    inside, dot, _ = key.rpartition(".")
    if not dot or not key.startswith("usecases."):
        return [*_keys(model), *model.model_fields]
    return [f"{inside}.{name}" for name in (RateSettings if ".per_scope." in key else UsecaseSettings).model_fields]


def _nearest(word: str, known: Collection[str]) -> str:
    from difflib import get_close_matches  # only needed after a mistake

    return get_close_matches(word[:VALUE_SHOWN_MAX], known, n=1, cutoff=0.0)[0]


def _shown_value(value: object) -> str:
    """A value of any type, as `_redacted`. What is long is not cut before the user and the password are left out."""
    return _redacted(quoted(f"…@{value.rpartition('@')[2]}" if isinstance(value, str) and "@" in value else value))


def _redacted(text: str) -> str:
    """A value, shortened to what a sentence holds, in Unicode. The user, the password and the options of a URL are left
    out.
    """
    _, at, host = text.rpartition("@")
    text = _without_options(f"…@{host}" if at else text)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= VALUE_SHOWN_MAX else f"{text[:VALUE_SHOWN_MAX]}…"


def _without_options(text: str) -> str:
    """A text without what follows the `?` of a URL."""
    return re.sub(r"([@/][^?\s]*\?)[^\s'\"]*", r"\1…", text)


def _keys(model: type[BaseModel]) -> Iterator[str]:
    """The key of every setting, in the order of declaration: `directory`, …, `store.concurrency_max`, …"""
    return (key for key, _ in _fields(model))


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Every setting with its key."""
    for name, field in model.model_fields.items():
        kinds = () if get_origin(field.annotation) is Mapping else (field.annotation, *get_args(field.annotation))
        section = next((kind for kind in kinds if _is_section(kind)), None)
        if section is None:
            yield name, field
        else:
            yield from ((f"{name}.{key}", inner) for key, inner in _fields(section))


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _named(values: Mapping[str, Any]) -> Iterator[str]:
    """The key of everything that a file sets, including sections and unknown names."""
    for name, value in values.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{key}" for key in _named(value))


def _value(values: Mapping[str, Any], key: str) -> Any:
    if key == "feed.to":
        return [Place.parse(to).shown for to in values["feed"]["to"]]
    if key in ("rows.options", "blobs.options"):
        return sorted(values[key.partition(".")[0]]["options"])
    section, dot, name = key.partition(".")
    return _value(values[section], name) if dot else values[section]
