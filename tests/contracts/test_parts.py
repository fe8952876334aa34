"""The contract suite `tiered/testing/contracts/parts.py`, on every implementation."""

from tiered.testing.contracts.parts import *  # noqa: F403
