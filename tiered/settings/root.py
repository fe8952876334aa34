"""`Settings`: all sections, where rows and blobs are, and what the settings tell of themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from changelog.base.errors import ConfigurationError
from tiered.settings import sections
from tiered.settings.relations import BLOB_SECTIONS, NO_CHANGELOG, ROW_SECTIONS, broken_relations, changelog_of, holder
from tiered.settings.sections import TUNING, Number, Section
from tiered.settings.sentences import fields_of, keys_of, sentences_of, value_of
from tiered.text import check_flags

_GOOGLES = {"bigtable.emulator_host": sections.BIGTABLE_EMULATOR, "gcs.endpoint": sections.GCS_EMULATOR}

DATABASE_NAME = "tiered.db"
"""The file of an embedded store's rows and changelog, in its directory."""

ALL_DEFAULTS: Any = Field(default_factory=dict, validate_default=True)
"""A section of which nothing is set."""


class Settings(Section):
    """All settings of a store and of a recovery daemon. Frozen. The constructor raises `ConfigurationError`.

    Give either `directory` (embedded mode; it holds `tiered.db`, `blobs/` and `uploads/`), or what holds the rows
    (`bigtable` or `postgres`) and what holds the blobs (`gcs` or `s3`; beside `postgres`, also `directory`). `rows` and
    `blobs` are for kinds of somebody else's package. `changelog`: where the rows are, or `noop`. In Bigtable there is
    none by default, and the store warns about it when it opens. `instance`: the name of this process in the changelog,
    which no other process may have; by default the store makes one up. `usecases`: what is allowed to objects, by the
    name of their usecase; `"*"`: to those of each other one. In the environment it is one JSON object, which replaces
    all that the file says of them.
    """

    directory: Annotated[Path | None, BeforeValidator(sections.directory_path)] = None
    bigtable: sections.BigtableSettings | None = None
    postgres: sections.PostgresSettings | None = None
    gcs: sections.GcsSettings | None = None
    s3: sections.S3Settings | None = None
    rows: sections.OtherSettings | None = None
    blobs: sections.OtherSettings | None = None
    changelog: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,49}$")] | None = Field(default_factory=lambda known: changelog_of(known))
    instance: Annotated[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,100}$")] | None, TUNING] = None
    inline_bytes_max: Annotated[int, Number, Field(gt=0, le=sections.INLINE_BYTES_LIMIT)] = 1_048_576
    store: sections.StoreSettings = ALL_DEFAULTS
    lease: sections.LeaseSettings = ALL_DEFAULTS
    recovery: sections.RecoverySettings = ALL_DEFAULTS
    feed: sections.FeedSettings = ALL_DEFAULTS
    daemon: sections.DaemonSettings = ALL_DEFAULTS
    links: sections.LinkSettings | None = None
    usecases: Annotated[Mapping[str, sections.UsecaseSettings], BeforeValidator(sections.json_mapping)] = Field(default_factory=dict)

    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, *, _origins: Mapping[str, str] = MappingProxyType({}), **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError("\n".join(sentences_of(type(self), error, _origins))) from None
        self._origins = dict(_origins)

    @model_validator(mode="after")
    def _related(self) -> Settings:
        if wrong := list(broken_relations(self)):
            raise ValueError("\n".join(wrong))
        return self

    @property
    def rows_kind(self) -> str:
        """What holds the rows: the name of a section, that of somebody else's kind, or `directory`."""
        return holder(self, ROW_SECTIONS)

    @property
    def blobs_kind(self) -> str:
        """What holds the blobs, as `rows_kind`."""
        return holder(self, BLOB_SECTIONS)

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
        return getattr(getattr(self, self.blobs_kind, None), "connections_max", sections.CONNECTIONS_MAX) // 4

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

        Secrets are left out. "from" is "default", "code", the path of the file, or the name of the variable.
        """
        values = self.model_dump(mode="json")
        return {key: {"value": value_of(values, key), "from": self._origin(key)} for key in self._shown_keys()}

    @classmethod
    def tuning(cls) -> frozenset[str]:
        """Returns the keys of tuning, such as `lease.expiry_s`. An operator need not choose them."""
        return frozenset(key for key, field in fields_of(cls) if field.json_schema_extra == TUNING.json_schema_extra)

    def _shown_keys(self) -> Collection[str]:
        """The keys of all settings. A section that is not set appears as its name only."""
        keys = ((key, key.partition(".")[0]) for key in keys_of(type(self)))
        return dict.fromkeys(section if getattr(self, section) is None else key for key, section in keys)

    def _origin(self, key: str) -> str:
        section, _, name = key.rpartition(".")
        owner: BaseModel = getattr(self, section) if section else self
        if key in self._origins or name in owner.model_fields_set:
            return self._origins.get(key, "code")
        return _GOOGLES[key] if key in _GOOGLES and os.environ.get(_GOOGLES[key]) else "default"
