"""How settings must relate to one another, and what follows from which of them are set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from changelog.base.errors import InvalidRequestError
from tiered.object_id import ObjectId
from tiered.settings.sections import OTHER_USECASES, OtherSettings
from tiered.settings.sentences import redacted

if TYPE_CHECKING:
    from tiered.settings.root import Settings


ROW_SECTIONS, BLOB_SECTIONS = ("bigtable", "postgres", "rows"), ("gcs", "s3", "blobs")
"""The sections of `Settings` that hold rows, and those that hold blobs. What none of them holds is in the directory."""

NO_CHANGELOG = "noop"
_WHERE = {"directory": "a directory", "bigtable": "Bigtable", "postgres": "PostgreSQL"}


def _said(settings: Settings, sections: Sequence[str]) -> list[str]:
    return [name for name in sections if getattr(settings, name) is not None]


def holder(settings: Settings, sections: Sequence[str]) -> str:
    name = next(iter(_said(settings, sections)), "directory")
    section = getattr(settings, name)
    return section.kind if isinstance(section, OtherSettings) else name


def changelog_of(known: Mapping[str, Any]) -> str | None:
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
        key = redacted(f"usecases.{name}")
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
                yield f"{key}.per_scope.{redacted(scope)} limits nothing: give it requests_per_s or bytes_per_s"


def broken_relations(settings: Settings) -> Iterator[str]:
    """One sentence for each relation between settings that does not hold."""
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
