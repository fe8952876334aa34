"""Pages of a listing of the GCS emulator: what matches, grouped by a delimiter, by name and generation."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from emulators.gcs.answers import GcsError
from emulators.gcs.objects import Listed
from emulators.gcs.wire import is_true, parse_int

PAGE_MAX = 1000
GLOB = re.compile(r"\*\*|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ObjectPage:
    objects: Sequence[Listed]
    prefixes: list[str]
    next_token: str | None


def limit_of(query: Mapping[str, str], page_max: int) -> int:
    """Returns how many objects and prefixes one page has."""
    asked = parse_int(query, "maxResults")
    if asked is not None and asked < 0:
        raise GcsError(400, f"Invalid maxResults {asked}")
    return min(asked or PAGE_MAX, page_max)


def page_of(listed: Iterable[Listed], query: Mapping[str, str], page_max: int) -> ObjectPage:
    """Returns one page of what is listed, which may be in any order.

    Its tokens are valid as long as nothing is written or deleted.
    """
    prefix, start, end = (query.get(key, "").encode() for key in ("prefix", "startOffset", "endOffset"))
    glob = glob_pattern(query["matchGlob"]) if query.get("matchGlob") else None
    if glob and query.get("delimiter"):
        raise GcsError.lacking("matchGlob beside a delimiter")
    found = [
        each for each in listed
        if (name := each.name.encode()).startswith(prefix) and start <= name and (not end or name < end)
        and (glob is None or glob.fullmatch(each.name))
    ]  # fmt: skip
    found.sort(key=lambda each: (each.name.encode(), each.generation))
    entries = list(_grouped(found, query))
    token = query.get("pageToken") or "0"  # an empty one asks for the first page
    if not token.isdecimal():
        raise GcsError(400, f"Invalid page token {token}")
    first, limit = int(token), limit_of(query, page_max)
    shown = entries[first : first + limit]
    return ObjectPage(
        [each for _, objects in shown for each in objects], [group for group, _ in shown if group],
        str(first + limit) if first + limit < len(entries) else None,
    )  # fmt: skip


def _grouped(found: Iterable[Listed], query: Mapping[str, str]) -> Iterator[tuple[str, list[Listed]]]:
    """Yields each object outside of groups, and each group with the objects that are its prefix, if asked for."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    groups: dict[str, list[Listed]] = {}
    for each in found:
        head, cut, _ = each.name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        group = prefix + head + cut
        beside = [each] if cut and group == each.name and is_true(query, "includeTrailingDelimiter") else []
        if not cut:
            yield "", [each]
        elif group in groups:
            groups[group] += beside
        else:
            groups[group] = beside
            yield group, groups[group]


def glob_pattern(glob: str) -> re.Pattern[str]:
    """Returns what a glob matches: `*` and `?` no slash, `**` anything."""
    if set(glob) & set("[]{}\\"):
        raise GcsError.lacking("sets and braces of matchGlob")
    meant = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meant.get(part) or re.escape(part) for part in GLOB.findall(glob)), re.DOTALL)


def token_of(position: bytes) -> str:
    return base64.urlsafe_b64encode(position).decode()


def from_token(token: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(token)
    except binascii.Error:
        raise GcsError(400, f"Invalid page token {token}") from None
