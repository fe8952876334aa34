"""Log lines with stable names: `events.warning("touch_failed", error, object=object_id)`.

    text       touch_failed object=photos/org.17/objects/cat.jpg: the bucket did not answer
    a record   record.event, record.fields (a mapping), record.why; a handler or a formatter of any kind may use them

All code logs through here, to the logger `tiered`, and configures nothing: handlers and levels are the application's.
docs/logs.md lists every event, and a test compares that list with the code. One event is one line: characters that
could control a terminal or begin a new line are escaped. The template of a message depends on the event and the names
of its fields alone, so services that group messages by template group by event.
"""

from __future__ import annotations

import logging

Field = str | int | float | bool | None


class Events:
    """Writes events to one logger. `why`: a sentence or an error. `exc_info`: also log this error's traceback.

    A field that is None is left out of the text, and is in the record's `fields`.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, why: object = None, /, **fields: Field) -> None:
        self._write(logging.DEBUG, event, why, None, fields)

    def info(self, event: str, why: object = None, /, **fields: Field) -> None:
        self._write(logging.INFO, event, why, None, fields)

    def warning(self, event: str, why: object = None, /, *, exc_info: BaseException | None = None, **fields: Field) -> None:
        self._write(logging.WARNING, event, why, exc_info, fields)

    def error(self, event: str, why: object = None, /, *, exc_info: BaseException | None = None, **fields: Field) -> None:
        self._write(logging.ERROR, event, why, exc_info, fields)

    def _write(self, level: int, event: str, why: object, exc_info: BaseException | None, fields: dict[str, Field]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        reason = None if why is None else text_of(why) or type(why).__name__
        said = {name: _value(value) for name, value in fields.items() if value is not None}
        template = " ".join([event, *(f"{name}=%({name})s" for name in said)])
        if reason is not None:
            template += ": %(why)s"
            said["why"] = printable(reason)
        # Without a field and a reason there is nothing to fill in, and logging then leaves the template as it is.
        self._logger.log(
            level, template, *([said] if said else []), exc_info=exc_info, stacklevel=3,
            extra={"event": event, "fields": fields, "why": reason},
        )


ONCE_MAX = 100


class Once:
    """Remembers which lasting faults were told, so that each is one line in the log and not one a pass.

    It keeps up to `ONCE_MAX` of them. Further ones are not told: the log has enough of their kind.
    """

    def __init__(self) -> None:
        self._told: set[str] = set()

    def is_new(self, fault: str) -> bool:
        """Whether this fault should be told now. After True it counts as told."""
        if fault in self._told or len(self._told) >= ONCE_MAX:
            return False
        self._told.add(fault)
        return True


def text_of(value: object) -> str:
    """Returns `str(value)`, or the name of its type if that raises: what is told must not fail because of it."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - it is code of others
        return type(value).__name__


def printable(text: str) -> str:
    """Returns the text with each character escaped that is not printable, such as a line feed or a direction mark."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _value(value: Field) -> str:
    text = text_of(value)
    return repr(text) if not text.isprintable() or not text or set(text) & _QUOTED else text


_QUOTED = frozenset(" '\"=")
"""Text with one of these is quoted, so that every field can be told from the next."""

events = Events(logging.getLogger("tiered"))
