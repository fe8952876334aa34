"""What every backend must do, as tests for pytest. Whoever writes a backend runs them. Needs the extra `testing`.

    # a module of tests
    from tiered.testing.contracts.high_volume import *

    high_volume.py   for a `HighVolumeBackend`: needs a fixture `high_volume`
    long_term.py     for a `LongTermBackend`: needs a fixture `long_term`. If it has `BlobRestoration`, it keeps what it
                     deletes for a while, or it keeps only what somebody else deletes
    parts.py         for a long-term tier with `PartUploads` that takes parts of one byte: needs a fixture `parts_tier`
    changelog.py     for a `ChangeLog`: needs a fixture `changelog`, and `plant`: an async function (log, key, bytes)
                     that puts raw bytes under a key into the log
    whole_blobs.py   writes and reads whole blobs
    examples.py      how many examples of hypothesis are tried, without a deadline

Each needs a fixture `runtime`, too: a `tiered.testing.Clock`, with which the backend was made. Fixtures are
asynchronous generators, which anyio's plugin runs on asyncio and trio. `tests/contracts/` in the checkout shows this.
"""

from changelog.base.errors import ConfigurationError
from changelog.base.extras import installing

try:
    import hypothesis  # noqa: F401
    import pytest
except ImportError as missing:
    raise ConfigurationError(f"the contracts need {missing.name}, which is not installed: {installing('testing')}") from None

pytest.register_assert_rewrite(f"{__name__}.high_volume", f"{__name__}.long_term", f"{__name__}.parts", f"{__name__}.changelog")
