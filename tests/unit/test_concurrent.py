"""Two things at once: the plain error of the one that failed."""

from __future__ import annotations

import anyio
import pytest

from tiered.concurrent import both

pytestmark = pytest.mark.anyio


async def test_error_comes_out_as_it_was_with_its_cause() -> None:
    cause = KeyError("cause")

    async def fails() -> None:
        raise ValueError("mine") from cause

    for pair in ((fails, anyio.sleep_forever), (anyio.sleep_forever, fails)):
        with pytest.raises(ValueError, match="mine") as caught:
            await both(*pair)
        assert caught.value.__cause__ is cause
