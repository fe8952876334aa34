"""Starts a PostgreSQL and an S3 server, and makes schema and bucket in them, as `up.py` does with the emulators.

    async with start_servers() as settings: ...              for tests: the settings contain both addresses
    python -m emulators up --backend postgres+s3             by hand: until SIGINT or SIGTERM (`emulators.__main__`)

What they keep is gone when they are stopped. *Crash*: wardens end both servers. *Failure*: a taken port, a server that
is not on this machine and names that cannot be provisioned give one sentence, and nothing keeps running. Only asyncio,
like the client of S3.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from unittest.mock import patch

from changelog.base.errors import ConfigurationError
from emulators.ports import refuse_taken
from emulators.postgres.server import SAFE, USER, PostgresNotFoundError, postgres_server
from emulators.s3.servers import CREDENTIALS, REGION, on_a_disk, start_versitygw
from tiered.kinds.chosen import provision
from tiered.provision.findings import problems
from tiered.settings import PostgresSettings, Settings

SERVED = Settings.model_validate({
    "changelog": "postgres",
    "postgres": {"dsn": f"postgresql://{USER}@127.0.0.1:15432/postgres"},
    "s3": {"bucket": "tiered-blobs", "endpoint": "http://127.0.0.1:17070", "region": REGION, "addressing_style": "path"},
})
"""The names in deploy/postgres-s3.yaml. The addresses there are those of deploy/compose.yaml."""


@asynccontextmanager
async def start_servers(names: Settings = SERVED, *, postgres_port: int = 0, s3_port: int = 0) -> AsyncIterator[Settings]:
    """Starts both on loopback, with schema and bucket, and yields `names` with their addresses in it.

    Port 0 means any free port. Until the block ends, the environment has the credentials of the S3 server.

    Raises `ConfigurationError` if the settings do not name PostgreSQL and S3, if there is no PostgreSQL here or if it
    cannot be provisioned; `S3ServerNotFoundError`, and `PortTakenError`.
    """
    if names.postgres is None or names.s3 is None:
        raise ConfigurationError("this store is not in PostgreSQL and S3: give settings with the sections postgres and s3")
    refuse_taken(postgres_port, "postgres_port")
    refuse_taken(s3_port, "s3_port")
    try:
        with patch.dict(os.environ, CREDENTIALS), on_a_disk() as directory, postgres_server(SAFE, postgres_port) as postgres:
            async with start_versitygw(directory, s3_port) as endpoint:
                at = names.model_copy(update={
                    "postgres": PostgresSettings.model_validate({**names.postgres.model_dump(), "dsn": postgres.dsn()}),
                    "s3": names.s3.model_copy(update={"endpoint": endpoint}),
                })
                if wrong := problems(await provision(at)):
                    raise ConfigurationError("; ".join(wrong))
                yield at
    except PostgresNotFoundError as missing:
        raise ConfigurationError(str(missing)) from missing


def variables(at: Settings) -> Mapping[str, str]:
    """Returns what leads a store with these names here: addresses, and credentials as AWS's tools find them."""
    assert at.postgres is not None and at.s3 is not None
    keys = {name: CREDENTIALS[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    return {"TIERED_POSTGRES__DSN": at.postgres.dsn.get_secret_value(), "TIERED_S3__ENDPOINT": str(at.s3.endpoint), **keys}
