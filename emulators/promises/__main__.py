"""`python -m emulators.promises`: what the last release promised and today's code does not keep. Ends with 1 if any."""

from __future__ import annotations

import sys

from emulators.promises.breaks import UndescribedError
from emulators.promises.compared import refused
from emulators.released import ROOT, NotReleasedError, released


def main() -> int:
    try:
        release = released()
        found = refused(release.version, release.source(), ROOT, long=True)
    except (NotReleasedError, UndescribedError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for each in found:
        sys.stderr.write(f"{each}\n")
    if not found:
        sys.stdout.write(f"what {release.version} ({release.commit[:8]}) promised is kept, or was deprecated by it\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
