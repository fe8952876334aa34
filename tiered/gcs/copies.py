"""Copies that the service makes itself within a bucket: `rewrite`, in one request or several; the last one creates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from changelog.base.errors import UnavailableError
from changelog.base.runtime import Runtime
from tiered.gcs.answers import GcsResponse, a_rewrite
from tiered.gcs.format import CHECKED_FIELDS, encode_resource
from tiered.gcs.http import JSON, GcsHttp, GcsRequest
from tiered.gcs.stored import check_stored
from tiered.metadata import Metadata
from tiered.services.scans import Generation

COPY_S = 300.0


async def rewrite(
    http: GcsHttp, name: str, target: str, only: Mapping[str, str], doing: str, *, body: bytes = b"", told: str = "",
    may_go_on: Callable[[], bool] = lambda: True,
) -> GcsResponse:  # fmt: skip
    """Copies a blob, if nothing has the name `target`, and if it is what `only` says. Returns the last answer.

    `body`: all metadata of the copy; empty: those of the blob. `told`: the fields that are asked of it. `may_go_on`: is
    asked before each request.
    """
    fields = f"kind,done,rewriteToken{told and f',resource({told})'}"
    query, shape = {**only, "ifGenerationMatch": "0", "fields": fields}, a_rewrite(http.bucket, target, told)
    while may_go_on():
        url = http.copy_url(name, target, **query)
        answer = await http.call(GcsRequest(
            "POST", url, doing, shape, accept=(200, 404, 412), headers=JSON if body else {}, body=body, effect=True
        ))
        if answer.status != 200 or answer.told["done"]:
            return answer
        query["rewriteToken"] = answer.told["rewriteToken"]
    raise UnavailableError(f"{doing} took longer than {COPY_S:g} s, and was given up")


async def copy_anew(http: GcsHttp, runtime: Runtime, source: str, generation: Generation, name: str, metadata: Metadata) -> None:
    """Makes a blob with the bytes of another, and with its own metadata.

    The service copies within a bucket in one request. If it needs more, they are sent for `COPY_S` seconds at most. So
    the last one leaves soon after the lease was looked at, as with any upload that has no session.
    """
    doing, until_s = f"copying blob {source!r} to {name!r}", runtime.boot_time() + COPY_S
    answer = await rewrite(
        http, source, name, {"ifSourceGenerationMatch": generation}, doing, body=encode_resource(name, metadata), told=CHECKED_FIELDS,
        may_go_on=lambda: runtime.boot_time() <= until_s,
    )  # fmt: skip
    if answer.status != 200:
        why = f"the source is gone, or the name is taken ({answer.reason})"
        raise UnavailableError(f"{doing} failed: {why}").coded(str(answer.status), heard=True)
    await check_stored(http, name, metadata, answer.told["resource"])
