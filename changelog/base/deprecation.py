"""How this software warns of what the next release will not have.

    deprecated("tiered.TieredStorage.put(compress)", "pass compression=")     a DeprecationWarning, for whoever calls
    deprecated("setting lease.expiry_s", "set lease.expires_s")               a line in the log, for whoever operates

A caller passes the name as a literal, in the spelling in which HISTORY.md lists it under **Deprecated**: so
`emulators/promises` finds in a release what it warned of. docs/promises.md says for how long.
"""

from __future__ import annotations

import warnings

from changelog.base.events import events

OPERATED = ("setting ", "command ")
"""How names begin that people type, and no program: Python would not show them a DeprecationWarning."""


def deprecated(name: str, instead: str, *, stacklevel: int = 3) -> None:
    """Warns that `name` is used, and says what to use `instead`. It is called where that is known.

    `stacklevel`: how many calls up the line is that the warning names; 3: the caller of whoever calls this.
    """
    if name.startswith(OPERATED):
        events.warning("deprecated", f"the next release will not have it: {instead}", name=name)
    else:
        warnings.warn(f"{name} is deprecated, and the next release will not have it: {instead}", DeprecationWarning, stacklevel)
