"""What kinds of blobs in a bucket have in common: how they are named, and whose they are.

The owner of the blobs is verified when they are opened: a store would delete those of another one. With `verify` False
this was done before; the tiers still ask for the owner before they change anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.events import events
from tiered.kinds.kind import Inventoried
from tiered.protocol.capabilities import Ownership
from tiered.settings import GcsSettings, S3Settings, Settings


class BucketKind:
    """`section`: of the settings. `scheme`: of addresses. `elsewhere`: how an audit calls an endpoint that is set."""

    section: str
    scheme: str
    elsewhere: str

    def at(self, settings: Settings) -> GcsSettings | S3Settings:
        found = getattr(settings, self.section)
        assert isinstance(found, GcsSettings | S3Settings), "whoever chooses this kind has seen its section"
        return found

    def address(self, settings: Settings) -> str:
        at = self.at(settings)
        return f"{self.section}:{at.bucket}{at.prefix and f'/{at.prefix}'}"

    def inputs(self, settings: Settings) -> Mapping[str, str]:
        at = self.at(settings)
        named = {"bucket": at.bucket, "prefix": at.prefix, self.elsewhere: at.endpoint or ""}
        return {name: value for name, value in named.items() if value}

    def place(self, settings: Settings) -> str:
        return f"{self.scheme}://{self.at(settings).bucket}"

    def inventoried(self, settings: Settings) -> Inventoried:
        at = self.at(settings)
        return Inventoried(self.section, at.bucket, at.prefix)


async def verify_owner(blobs: Ownership, bucket: str, *, writes: bool) -> None:
    """Says now, not at the first large put, that the bucket is missing, forbidden or another store's."""
    try:
        if (ownerless := await blobs.check_owner()) is not None:
            if writes:
                raise ConfigurationError(ownerless)
            events.warning("bucket_without_owner", ownerless, bucket=bucket)
    except UnavailableError as error:  # small objects and the changelog work without the bucket
        events.warning("bucket_not_reached", error, bucket=bucket)
