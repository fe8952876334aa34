"""The contract suite `tiered/testing/contracts/high_volume.py`, on every implementation."""

from tiered.testing.contracts.high_volume import *  # noqa: F403
