"""`Authorize`: what a client needs to prove to a service who calls. `tokens.py` implements it.

`Sign`: what it needs to prove to others that it lets them. `signing.py` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol


class Authorize(Protocol):
    """Gives each request the headers that prove who sends it."""

    async def __call__(self, within_s: float = ...) -> Mapping[str, str]:
        """The headers to send, such as `Authorization`, after `within_s` seconds at most.

        Raises `UnavailableError` or `ConfigurationError`: nothing was sent.
        """

    def refused(self, headers: Mapping[str, str]) -> bool:
        """The service did not accept these headers. The next request must get other ones.

        Returns whether it may accept those: these were not new.
        """


class Sign(Protocol):
    """Signs as an account of the service."""

    async def __call__(self, message_of: Callable[[str], bytes]) -> tuple[str, bytes]:
        """The email of the account, and the signature of what `message_of` makes of that.

        `message_of` is called in a thread. Raises `UnavailableError` or `ConfigurationError`: nothing was signed.
        """
