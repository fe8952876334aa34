"""A storage backend of Django, in the style of django-storages. The name of a file is the key of an object.

A file is stored before Django writes the row that names it. So no row names a file that is not there. A transaction
that is rolled back leaves an object that no row names, and so does a row that gets another file.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from mimetypes import guess_type
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from typing import TypeVar

from django.conf import settings
from django.core.files.base import File
from django.core.files.storage import Storage
from django.utils.deconstruct import deconstructible
from django.utils.timezone import make_naive

from examples.process_store import ProcessStore
from tiered import ConditionFailedError, Metadata, ObjectId

T = TypeVar("T")


class NoSuchFileError(FileNotFoundError):
    silent_variable_failure = True  # a template shows nothing for it, and Python code meets it


@deconstructible
class ObjectStorage(Storage):  # type: ignore[misc]  # Django ships no types
    """`config`: the settings file of the store. `link_s`: for how many seconds a `url` is good."""

    def __init__(self, usecase: str = "media", config: str | None = None, link_s: float = 3600) -> None:
        self._usecase, self._link = usecase, timedelta(seconds=link_s)
        self.store = ProcessStore(config or os.environ["TIERED_CONFIG"])

    def _id(self, name: str) -> ObjectId:
        return ObjectId.create(self._usecase, name)

    # --8<-- [start:storage]
    def _save(self, name: str, content: File) -> str:
        """Never replaces a file: of two that are saved under one name at once, one gets another name."""
        metadata = Metadata(content_type=guess_type(name)[0] or "application/octet-stream")  # what a browser says is not asked
        while True:
            payload = (each.encode() if isinstance(each, str) else each for each in content.chunks())  # it may be a file of text
            try:
                self.store().put(self._id(name), payload, metadata, if_absent=True)
                return name
            except ConditionFailedError:
                name = self.get_available_name(name)

    def _open(self, name: str, mode: str = "rb") -> File:
        """A copy in memory, or in a temporary file if it is large: a file of Django can seek."""
        if mode != "rb":
            raise ValueError(f"{name}: open it with mode 'rb', not {mode!r}; save() writes a file")
        with found(name, self.store().get(self._id(name))) as stored:
            copy = SpooledTemporaryFile(max_size=1 << 20)  # noqa: SIM115 - the file that is returned closes it
            copyfileobj(stored, copy)
        copy.seek(0)
        return File(copy, name)

    def url(self, name: str | None) -> str:
        """A link that saves the file as it is now."""
        return found(name, self.store().sign_get(self._id(name or ""), self._link, disposition="attachment"))
    # --8<-- [end:storage]

    def delete(self, name: str) -> None:
        self.store().delete(self._id(name))

    def exists(self, name: str) -> bool:
        return self.store().head(self._id(name)) is not None

    def size(self, name: str) -> int:
        return found(name, self.store().head(self._id(name))).size

    def get_modified_time(self, name: str) -> datetime:
        created: datetime = found(name, found(name, self.store().head(self._id(name))).metadata.time_created)
        return created if settings.USE_TZ else make_naive(created)


def found(name: str | None, it: T | None) -> T:
    if it is None:
        raise NoSuchFileError(name)
    return it
