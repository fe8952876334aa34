"""The contract suite `tiered/testing/contracts/changelog.py`, on every implementation."""

from tiered.testing.contracts.changelog import *  # noqa: F403
