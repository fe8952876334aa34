"""The contract suite `tiered/testing/contracts/long_term.py`, on every implementation."""

from tiered.testing.contracts.long_term import *  # noqa: F403
