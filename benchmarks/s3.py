"""CPU of the client for blobs on S3: our adapter beside bare calls of aiobotocore, on versitygw, by turns.

Bare calls are those that somebody would write first: `put_object`, `get_object` and `delete_object` with the library's
own settings, its crc32 among them. The server is another process.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiobotocore.session import get_session

from benchmarks.harness import RUNTIME, Contest, Figures, Measure, put_get_delete
from benchmarks.sides import BlobsSide
from changelog.change import ChangeId
from emulators.s3.servers import CREDENTIALS, REGION, start_versitygw
from tiered.s3.blobs import S3Blobs

CALLS = 40
PAYLOAD = os.urandom(2 * 1024 * 1024)
CHUNK_BYTES = 256 * 1024
BUCKET = "bench"


class BareS3:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def put(self, name: str, token: ChangeId, payload: bytes) -> None:
        await self._client.put_object(Bucket=BUCKET, Key=name, Body=payload, IfNoneMatch="*")

    async def get(self, name: str) -> bytes | None:
        answer = await self._client.get_object(Bucket=BUCKET, Key=name)
        return b"".join([chunk async for chunk in answer["Body"].iter_chunks(CHUNK_BYTES)])

    async def delete(self, name: str, token: ChangeId) -> None:
        await self._client.delete_object(Bucket=BUCKET, Key=name)


async def figures(size: float) -> list[Figures]:
    os.environ.update(CREDENTIALS)
    with TemporaryDirectory(prefix="tiered-bench-", dir="/var/tmp") as directory:
        async with (
            start_versitygw(Path(directory)) as url,
            S3Blobs.connect(BUCKET, RUNTIME, endpoint=url, region=REGION, addressing_style="path") as blobs,
            get_session().create_client("s3", endpoint_url=url, region_name=REGION) as bare,
        ):
            await bare.create_bucket(Bucket=BUCKET)
            table = Contest[Any](
                "S3, beside bare calls of aiobotocore", {"ours": BlobsSide(blobs), "bare": BareS3(bare)},
                measures=[Measure("cpu_s", "ms")], notes=["The goal is 1.3 at most."],
            )  # fmt: skip
            await table.run(put_get_delete(PAYLOAD, " 2 MiB"), max(2, round(CALLS * size)), 1)
    return [table.figures()]
