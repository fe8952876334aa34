"""Both tiers and the changelog, wrapped: every call to a service is told to an observer.

A wrapper has the methods of the protocol that its backend has, and no others. So a capability is seen exactly
where the backend has it. Everything else of the backend is passed on. Results, errors and cancellations reach the
caller unchanged. An upload and a blob that is being read talk to the service as well, so they are wrapped, too.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from changelog.base.errors import UnconfirmedError
from changelog.base.observe import Event, Observer
from changelog.log import ChangeLog, LeftGarbageError
from tiered.services.backends import BlobReader, HighVolumeBackend, LongTermBackend, RangedReader, Tiers, Upload
from tiered.services.breaker import CHANGELOG, HIGH_VOLUME, LONG_TERM
from tiered.services.capabilities import BLOB_CAPABILITIES, LOG_CAPABILITIES, ROW_CAPABILITIES
from tiered.services.scans import Removal


def observed_tiers(tiers: Tiers, observer: Observer) -> Tiers:
    return Tiers(
        cast(HighVolumeBackend, Observed(tiers.high_volume, HIGH_VOLUME, observer)),
        cast(LongTermBackend, _ObservedBlobs(tiers.long_term, LONG_TERM, observer)),
        tiers.local,
        tiers.inline_write_s_max,
    )


def observed_log(log: ChangeLog, observer: Observer) -> ChangeLog:
    """The log, wrapped. One that keeps nothing is no service, and is returned as it is."""
    return cast(ChangeLog, Observed(log, CHANGELOG, observer)) if log.durable else log


PROTOCOLS: Mapping[str, Sequence[type]] = {
    HIGH_VOLUME: (HighVolumeBackend, *ROW_CAPABILITIES),
    LONG_TERM: (LongTermBackend, *BLOB_CAPABILITIES),
    CHANGELOG: (ChangeLog, *LOG_CAPABILITIES),
}
"""What a backend of each service implements, and may implement."""


def _calls_of(service: str) -> frozenset[str]:
    """The asynchronous methods of a service's protocols: the calls to the service."""
    found = [inspect.getmembers(protocol, inspect.iscoroutinefunction) for protocol in PROTOCOLS[service]]
    return frozenset(name for methods in found for name, _ in methods if not name.startswith("_"))


METHODS: Mapping[str, frozenset[str]] = {service: _calls_of(service) for service in PROTOCOLS}
"""The calls of each service. A new method of a protocol is in here by itself."""

UPLOAD_METHODS: Mapping[str, tuple[str, bool]] = {
    "write": ("upload_write", False), "finalise": ("upload_finalise", True), "abort": ("upload_abort", True),
}
"""The calls of an upload: their names as calls of the long-term tier, and whether each gets a span."""

READ_PIECE = "read_chunk"


class Observed:
    """A backend whose calls are told. It is asked for the method at each call, so a test may replace one."""

    def __init__(self, backend: Any, service: str, observer: Observer) -> None:
        self.backend = backend
        self._observer = observer
        for name in METHODS[service]:
            if getattr(backend, name, None) is not None:
                setattr(self, name, self._told(service, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def _told(self, service: str, name: str) -> Callable[..., Any]:
        backend, observer = self.backend, self._observer
        answered, failed = ANSWERED.get((service, name)), FAILED.get((service, name))

        async def call(*args: Any, **named: Any) -> Any:
            with observer.call(service, name):
                try:
                    result = await getattr(backend, name)(*args, **named)
                except BaseException as error:
                    if failed is not None:
                        _tell(failed, observer, args, error)
                    raise
                if answered is not None:
                    _tell(answered, observer, args, result)
                return result

        call.__name__ = name
        return call


class _ObservedBlobs(Observed):
    """A long-term tier, whose uploads and readers are wrapped, too."""

    def _told(self, service: str, name: str) -> Callable[..., Any]:
        call = super()._told(service, name)
        if name in ("open_upload", "open_copy"):
            async def open_upload(*args: Any, **named: Any) -> Upload:
                return cast(Upload, _ObservedUpload(await call(*args, **named), self._observer))

            return open_upload
        if name == "open":
            async def open(*args: Any, **named: Any) -> BlobReader | None:
                reader = await call(*args, **named)
                return None if reader is None else cast(BlobReader, _ObservedReader(reader, self._observer))

            return open
        return call


class _ObservedUpload:
    def __init__(self, upload: Upload, observer: Observer) -> None:
        self._upload = upload
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._upload, name)

    async def write(self, chunk: bytes | memoryview) -> None:
        with self._call("write"):
            await self._upload.write(chunk)

    async def finalise(self) -> None:
        with self._call("finalise"):
            await self._upload.finalise()

    async def abort(self) -> None:
        with self._call("abort"):
            await self._upload.abort()

    def _call(self, name: str) -> Any:
        method, traced = UPLOAD_METHODS[name]
        return self._observer.call(LONG_TERM, method, traced=traced)


class _ObservedReader:
    """A reader. More ranges of its blob are calls like the one that opened it."""

    def __init__(self, reader: BlobReader, observer: Observer) -> None:
        self._reader = reader
        self._observer = observer
        if isinstance(reader, RangedReader):
            self.ranges = partial(_ObservedRanges, reader, observer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def chunks(self) -> AsyncIterator[bytes]:
        source = self._reader.chunks()
        try:
            while True:
                with self._observer.call(LONG_TERM, READ_PIECE, traced=False):
                    try:
                        chunk = await anext(source)
                    except StopAsyncIteration:
                        return
                yield chunk
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()


class _ObservedRanges:
    def __init__(self, reader: RangedReader, observer: Observer) -> None:
        self._ranges = reader.ranges()
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranges, name)

    async def open(self, start: int, stop: int) -> BlobReader | None:
        with self._observer.call(LONG_TERM, "open"):
            reader = await self._ranges.open(start, stop)
        return None if reader is None else cast(BlobReader, _ObservedReader(reader, self._observer))


# --- what the answers mean -----------------------------------------------------------------------

Tell = Callable[[Observer, Sequence[Any], Any], None]
"""Gets the observer, the arguments of the call, and its result or error."""


def _tell(tell: Tell, observer: Observer, args: Sequence[Any], result: Any) -> None:
    try:
        tell(observer, args, result)
    except Exception as error:  # noqa: BLE001 - the call is done, and its caller gets the answer, whatever is wrong here
        observer.failed(error)


def _which(event: Event, yes: str, no: str) -> Tell:
    """For calls that say True or an entry, and False or None."""
    return lambda observer, args, result: observer.count(event, no if result is None or result is False else yes)


def _once(event: Event) -> Tell:
    return lambda observer, args, result: observer.count(event)


def _unknown(event: Event) -> Tell:
    """For effects that may be lost on the way: nobody knows, if there was no answer or the wait for it was given up."""
    return lambda observer, args, error: _count_unknown(event, observer, error)


def _count_unknown(event: Event, observer: Observer, error: BaseException) -> None:
    if isinstance(error, UnconfirmedError) or not isinstance(error, Exception):
        observer.count(event, "unknown")


def _renewed(observer: Observer, args: Sequence[Any], result: Any) -> None:
    for renewal in result:
        observer.count(Event.RENEWED, renewal.name.lower())


def _not_renewed(observer: Observer, args: Sequence[Any], error: BaseException) -> None:
    observer.count(Event.RENEWED, "failed", len(args[0]))


def _deleted(observer: Observer, args: Sequence[Any], result: Any) -> None:
    observer.count(Event.BLOB_DELETED)
    if result is not None:
        observer.count(Event.BLOB_BYTES_DELETED, amount=result)


def _deleted_generation(observer: Observer, args: Sequence[Any], result: Any) -> None:
    if result is Removal.DELETED:
        observer.count(Event.BLOB_DELETED)


def _deleted_generations(observer: Observer, args: Sequence[Any], result: Any) -> None:
    observer.count(Event.BLOB_DELETED, amount=sum(each is Removal.DELETED for each in result))


def _collected(service: str) -> Tell:
    return lambda observer, args, result: observer.count(Event.COLLECTED, service, result)


def _collected_some(service: str) -> Tell:
    return lambda observer, args, error: (
        observer.count(Event.COLLECTED, service, error.removed) if isinstance(error, LeftGarbageError) else None
    )


ANSWERED: Mapping[tuple[str, str], Tell] = {
    (HIGH_VOLUME, "swap"): _which(Event.SWAPPED, "won", "conflict"),
    (HIGH_VOLUME, "settle"): _which(Event.SETTLED, "live", "refused"),
    (HIGH_VOLUME, "put_inline"): _which(Event.INLINE_WRITTEN, "done", "refused"),
    (HIGH_VOLUME, "delete_inline"): _which(Event.INLINE_WRITTEN, "done", "refused"),
    (LONG_TERM, "delete"): _deleted,
    (LONG_TERM, "delete_generation"): _deleted_generation,
    (LONG_TERM, "delete_generations"): _deleted_generations,
    (CHANGELOG, "record"): _once(Event.RECORDED),
    (CHANGELOG, "renew"): _renewed,
    (CHANGELOG, "forget"): _once(Event.FORGOTTEN),
    (CHANGELOG, "claim"): _which(Event.CLAIMED, "won", "lost"),
    (CHANGELOG, "park"): lambda observer, args, result: observer.count(Event.PARKED) if result else None,
} | {(service, "collect"): _collected(service) for service in METHODS}

FAILED: Mapping[tuple[str, str], Tell] = {
    (HIGH_VOLUME, "swap"): _unknown(Event.SWAPPED),
    (HIGH_VOLUME, "put_inline"): _unknown(Event.INLINE_WRITTEN),
    (HIGH_VOLUME, "delete_inline"): _unknown(Event.INLINE_WRITTEN),
    (CHANGELOG, "renew"): _not_renewed,
} | {(service, "collect"): _collected_some(service) for service in METHODS}
