"""What every listing of a service must keep, page by page. What does not keep it is no evidence of what is there.

    PageCheck.take(names, next)   after each page: its names, and what the next page is asked by (None: it is the last)
    page_of_uploads               a page of uploads that ends between two names

A listing is in the order of its names, by their bytes. It has each name once. It has no name outside of what was asked
for. It goes on: a page brings names, or at least another token, and only so many pages in a row may be empty. Each
adapter takes each of its listings through this, and so does the audit for whatever adapter it has (a test). A page that
was left out cannot be seen here. For this, an audit asks for single blobs (`recovery/audit/sweeping/second_look.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice, pairwise
from operator import le, lt
from typing import Any, TypeVar

from changelog.base.errors import UnavailableError

EMPTY_PAGES_MAX = 1000
"""A service may leave pages empty, such as those of blobs that are gone. It never needs so many in a row."""


Upload = TypeVar("Upload", bound=tuple[Any, ...])


class ListingError(UnavailableError):
    """A listing that cannot be true. Nothing is concluded from it. It is not asked for again at once."""


class PageCheck:
    """Follows one listing. Names are text, or numbers if no range is given.

    `doing`: what is listed, for messages. `start`, `end`, `prefix`: what was asked for: names from `start` (inclusive)
    to `end` (exclusive; None: no end) that begin with `prefix`. `after`: names after this one; it moves on with each
    page.
    """

    def __init__(self, doing: str, *, start: Any = None, end: str | None = None, prefix: str = "", after: Any = None) -> None:
        self._doing = doing
        self._start = start
        self._end = end
        self._prefix = prefix
        self._after = after
        self._last: Any = None
        self._ids: set[Any] = set()
        self._tokens: set[Any] = set()

    def take(self, names: Sequence[Any], following: Any = None, ids: Sequence[Any] | None = None) -> None:
        """Raises `ListingError` if this page cannot come after those before it.

        `following`: the token, marker or name that the next page is asked by; None: this is the last page. `ids`: what
        tells entries apart that have one name, for a listing that may have several of them.
        """
        if names:
            self._check_order(names, ids)
            self._check_range(names[0], names[-1])
            self._after = names[-1]
            self._tokens.clear()
        elif following is not None and len(self._tokens) >= EMPTY_PAGES_MAX:
            raise self._wrong(f"{EMPTY_PAGES_MAX:,} pages in a row are empty, and it does not end")
        if following is not None:
            if following in self._tokens:
                raise self._wrong("a page without names leads back to an earlier one, so it never ends")
            self._tokens.add(following)

    def _check_order(self, names: Sequence[Any], ids: Sequence[Any] | None) -> None:
        in_order = lt if ids is None else le
        before = names if self._after is None else (self._after, *names)
        if not all(map(in_order, before, islice(before, 1, None))):
            one, other = next(pair for pair in pairwise(before) if not in_order(*pair))
            order = "once more" if one == other else f"after {one!r}, which is not the order of bytes"
            raise self._wrong(f"it has {other!r} {order}")
        for name, each in zip(names, ids or (), strict=ids is not None):
            if name != self._last:
                self._last, self._ids = name, set()
            if each in self._ids:
                raise self._wrong(f"it has an entry of {name!r} once more")
            self._ids.add(each)

    def _check_range(self, first: Any, last: Any) -> None:
        """In order, the first name and the last one tell of all between them."""
        if self._start is not None and first < self._start:
            raise self._wrong(f"it has {first!r}, and was asked for what begins at {self._start!r}")
        if self._end is not None and last >= self._end:
            raise self._wrong(f"it has {last!r}, and was asked for what ends before {self._end!r}")
        for name in (first, last) if self._prefix else ():
            if not name.startswith(self._prefix):
                raise self._wrong(f"it has {name!r}, and was asked for names that begin with {self._prefix!r}")

    def _wrong(self, what: str) -> ListingError:
        return ListingError(
            f"{self._doing}: the answer is no evidence, because {what}; something in between answered, or the service lists wrongly"
            " ('tiered check' tries it)"
        ).telling(heard=True)


async def page_of_uploads(
    ask: Callable[[str, str], Awaitable[tuple[Sequence[Upload], bool]]], doing: str, after: str, prefix: str
) -> tuple[Sequence[Upload], str | None]:
    """Returns uploads of names after `after`, and the name where the next page begins; None: there are no more.

    `ask`: sends one request for what comes after a name, or after an id of this name (empty: none). It returns uploads,
    which begin with their name and their id, and whether there are more. What a marker with an id means, services do
    not agree on: AWS lists what was begun later, and says that it lists higher ids; versitygw refuses the marker that
    it told. So only if one name fills a page, the next one is asked for by an id.
    """
    check = PageCheck(doing, prefix=prefix, start=f"{after}\0" if after else None)
    found: list[Upload] = []
    marker = after, ""
    while True:
        told, is_more = await ask(*marker)
        if not is_more and not marker[0]:
            told = sorted(told)  # MinIO gives all that there are in one page, as they were begun
        check.take([each[0] for each in told], None, [each[1] for each in told])
        found += told
        if not is_more:
            return found, None
        if not told:
            raise ListingError(f"{doing} was answered with no upload, and as if there were more").telling(heard=True)
        last = told[-1]
        if whole := [each for each in found if each[0] != last[0]]:
            return whole, whole[-1][0]
        marker = last[0], last[1]
