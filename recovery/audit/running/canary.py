"""One small task for a worker on another machine, before any range: can it do the work at all?

    driver   Canary.send     RUN/_canary-TOKEN              is there before the task
    worker   look            does it see that file? then    RUN/_canary-TOKEN.back, and one page of all that is read
    driver   came_back       does it see that file?

So three things are known in one sentence before any range is begun: workers import this software, they reach the store
with their own credentials, and the run's directory is the same one for all. Otherwise each range would fail for the
same reason, some after minutes of retries.

Variables of the environment are sent by name only, and never their values. *Crash*: it leaves two small files, which
readers skip because of their names. *Failure*: the error of what the worker could not do, with the name of its machine.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from recovery.audit.files.ledger import RunDirectory
from tiered.open import Backends
from tiered.settings import GCS_EMULATOR

S3_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
VARIABLES = (
    GCS_EMULATOR, "GOOGLE_APPLICATION_CREDENTIALS", *S3_ENDPOINTS, "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_REGION",
    "AWS_DEFAULT_REGION", "HADOOP_CONF_DIR", "HADOOP_HOME",
)  # fmt: skip
"""Variables that decide how Arrow reaches a run directory."""


@dataclass(frozen=True, slots=True)
class Canary:
    """What a worker needs for this task. `token`: of the files. `variables`: which of `VARIABLES` the driver has."""

    token: str
    variables: tuple[str, ...]

    @classmethod
    def send(cls, directory: RunDirectory, runtime: Runtime) -> Canary:
        """Writes the file that the worker must see. It blocks."""
        canary = cls(f"{runtime.random.getrandbits(64):016x}", tuple(name for name in VARIABLES if os.environ.get(name)))
        directory.files.write(canary.there, canary.token.encode())
        return canary

    @property
    def there(self) -> str:
        return f"_canary-{self.token}"

    @property
    def back(self) -> str:
        return f"_canary-{self.token}.back"

    def check_back(self, directory: RunDirectory) -> None:
        """Raises `ConfigurationError` if the driver does not see what the worker wrote. It blocks."""
        if directory.files.read(self.back) != self.token.encode():
            raise ConfigurationError(f"what a worker writes to {directory.uri} is not seen here: {_ELSEWHERE}")

    def remove(self, directory: RunDirectory) -> None:
        for name in (self.there, self.back):
            with suppress(TieredError):
                directory.files.remove(f"{directory.files.path}/{name}")


_ELSEWHERE = "give a run directory that this machine and all workers share, such as gs://bucket/audits/1 or a path on a shared file system"


def check_variables(canary: Canary, where: str) -> None:
    """Refuses a worker that would look for the run's bucket at another service than the driver. It runs in the worker.
    """
    scheme = where.partition("://")[0].lower()
    deciding = (GCS_EMULATOR,) if scheme in ("gs", "gcs") else S3_ENDPOINTS if scheme == "s3" else ()
    if lacking := [name for name in deciding if name in _missing(canary)]:
        raise ConfigurationError(
            f"a worker on {socket.gethostname()} does not have {lacking[0]}, which says where {where} is:"
            f" send it along, on Spark with --conf spark.executorEnv.{lacking[0]}=…"
        )


def check_directory(canary: Canary, directory: RunDirectory) -> None:
    """Refuses a run directory that is not the driver's. It runs in the worker."""
    host = socket.gethostname()
    try:
        seen = directory.files.read(canary.there)
        if seen == canary.token.encode():
            directory.files.write(canary.back, seen)
            seen = directory.files.read(canary.back)
    except TieredError as error:
        lacking = ", ".join(_missing(canary))
        hint = f"; it does not have {lacking}, which the driver has" if lacking else ""
        kind = UnavailableError if isinstance(error, UnavailableError) else ConfigurationError
        raise kind(f"a worker on {host} cannot use the run directory: {error}{hint}") from error
    if seen != canary.token.encode():
        raise ConfigurationError(f"a worker on {host} does not see what was written to {directory.uri}: {_ELSEWHERE}")


async def check_backends(backends: Backends) -> None:
    """Reads one of everything that a range reads. It runs in the worker. Errors: those of the store."""
    await backends.tiers.long_term.list("", None, 1)
    await backends.log.entries("", 1)
    await backends.tiers.high_volume.redirects(b"", None, 1)


def _missing(canary: Canary) -> list[str]:
    return [name for name in canary.variables if not os.environ.get(name)]
