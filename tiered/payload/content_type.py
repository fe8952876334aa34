"""Guesses the MIME type of a file from its name. Pure; it looks at no file."""

from __future__ import annotations

from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING

from tiered.metadata import CONTENT_TYPE_DEFAULT

if TYPE_CHECKING:
    from mimetypes import MimeTypes

_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


def content_type_of(file: str) -> str:
    """Guesses the MIME type from the file's name. A compressed file gets the type of its compression.

    The metadata have no field that would tell a reader to unpack it. The guess uses Python's own table and not the
    machine's, so a file gets the same type on every machine.
    """
    guessed, packed = _table().guess_type(f"./{PurePath(file).name}", strict=False)
    if packed is not None:
        return _COMPRESSED.get(packed, CONTENT_TYPE_DEFAULT)
    return guessed or CONTENT_TYPE_DEFAULT


@cache
def _table() -> MimeTypes:
    from mimetypes import MimeTypes  # imported here: few callers store files

    return MimeTypes()
