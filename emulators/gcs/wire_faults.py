"""What may go wrong between a client and the GCS emulator.

The faults are rules; the first one that matches a request is used.

    server.faults.append(GcsFault(FaultMode.DROP_AFTER, kind="upload.*"))

A request whose client has given up is not forgotten: with `DELAY` it takes effect later all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase

from emulators.gcs.wire import WireRequest


class FaultMode(Enum):
    STATUS = "no effect, and an error status, once the body was read"
    DROP_BEFORE = "no effect: the connection is dropped before the body is read"
    DROP_AFTER = "the effect, and the connection is dropped instead of the answer"
    DELAY = "the effect a while after the whole body has come, then the answer"
    STALL_BEFORE = "no effect and no answer, until the server closes"
    STALL_AFTER = "the effect, and no answer until the server closes"
    TRUNCATE = "the effect, and half of the answer's body, then the connection is closed"


@dataclass(slots=True)
class GcsFault:
    """A fault.

    It is for calls whose kind (`emulators.gcs.routes.ROUTES`) matches the pattern and whose object's name contains
    `name`.

    `times`: how often it is still used; None for always. `status`, `headers` and `text` are for STATUS, `seconds` for
    DELAY. `text`: the body, as of something between client and service; None: the service's own form of an error.
    """

    mode: FaultMode
    kind: str = "*"
    name: str = ""
    times: int | None = 1
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    seconds: float = 0.0

    def matches(self, call: WireRequest, name: str) -> bool:
        return self.times != 0 and fnmatchcase(call.kind, self.kind) and self.name in name


def take_fault(faults: list[GcsFault], call: WireRequest, name: str) -> GcsFault | None:
    fault = next((each for each in faults if each.matches(call, name)), None)
    if fault is not None and fault.times is not None:
        fault.times -= 1
    return fault
