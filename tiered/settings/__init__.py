"""Settings: numbers and names only. Components (backends, runtime) are passed to the code that uses them.

    load_settings(path)   YAML file, and over it the environment: TIERED_LEASE__EXPIRY_S=40 is lease.expiry_s
    Settings(…)           from code: exactly what is given; the environment is not read, except Google's two variables

    root.py        begin here: `Settings`, the sections as a whole
    sections.py    each section, and what a value may be
    relations.py   how they must relate to one another
    sources.py     files and the environment; sentences.py: what is wrong, for people

Durations end in `_s` (seconds), sizes in `_bytes_max`, counts in `_max`. The constructor checks each number and the
relations: within the bounds nothing hangs, spins or overflows. *Failure*: `ConfigurationError`, with one sentence for
each problem. An unknown key is refused, in the file and in the environment, so that a typo is never ignored.
"""

from tiered.settings.relations import BLOB_SECTIONS, NO_CHANGELOG, ROW_SECTIONS
from tiered.settings.root import DATABASE_NAME, Settings
from tiered.settings.sections import (
    BIGTABLE_EMULATOR,
    GCS_EMULATOR,
    TRIAL_DIGITS,
    TRIALS,
    BigtableSettings,
    DaemonSettings,
    FeedSettings,
    GcsSettings,
    LeaseSettings,
    LinkSettings,
    PostgresSettings,
    RecoverySettings,
    S3Settings,
    StoreSettings,
)
from tiered.settings.sources import ENV_CONFIG, ENV_OTHERS, ENV_PREFIX, load_settings

__all__ = [
    "BIGTABLE_EMULATOR", "BLOB_SECTIONS", "DATABASE_NAME", "ENV_CONFIG", "ENV_OTHERS", "ENV_PREFIX", "GCS_EMULATOR", "NO_CHANGELOG",
    "ROW_SECTIONS", "TRIALS", "TRIAL_DIGITS", "BigtableSettings", "DaemonSettings", "FeedSettings", "GcsSettings", "LeaseSettings",
    "LinkSettings", "PostgresSettings", "RecoverySettings", "S3Settings", "Settings", "StoreSettings", "load_settings",
]  # fmt: skip
