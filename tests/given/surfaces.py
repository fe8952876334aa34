"""All that says how an embedded store is, asked at one moment: the commands, and the server of a daemon that lives."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import httpx
from prometheus_client import CollectorRegistry

from changelog.base.runtime import SystemRuntime
from recovery.http.app import make_app
from recovery.http.decisions import Decisions
from recovery.http.sampler import Sampler, questions_to
from recovery.http.server_view import ServerView
from recovery.metrics import StatusMetrics
from recovery.outages import Outages
from recovery.status.look import gather
from tests.given.alerts import DAEMON, Scraped, Target
from tests.given.command_line import Command
from tests.given.shown_status import SetWorker
from tiered import Settings, Telemetry
from tiered.open import open_backends

ANY_CODE = range(8)


@dataclass(frozen=True, slots=True)
class Surfaces:
    """`text`, `status`: of `tiered status`, and of it with --json. `page`: `/status.json`. `reasons`: of `/readyz`.

    `scraped`: `/metrics`, at two moments. `feed`, `check`, `shown`: what the commands `feed status`, `check`
    and `audit show` print.
    """

    text: str
    status: dict[str, Any]
    code: int
    page: dict[str, Any]
    reasons: list[str]
    scraped: Target
    feed: str
    feed_code: int
    check: str
    check_code: int
    shown: str
    shown_code: int | None

    def gauge(self, name: str) -> float | None:
        """The value of a line of `/metrics`. `name`: with its labels."""
        lines = (self.scraped.before.text or "").splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), None)

    @property
    def all_text(self) -> str:
        """What every surface says, in one text."""
        return "\n".join([self.text, json.dumps(self.status), json.dumps(self.page), *self.reasons, self.feed, self.check, self.shown])


Served = tuple[dict[str, Any], list[str], Target]
"""`/status.json`, the reasons of `/readyz`, and `/metrics`."""


def ask(store: Command, settings: Settings, name: str | None, served: Callable[[], Served] | None = None) -> Surfaces:
    """Asks every surface. The server is that of a daemon that has read the changelog just now, and no more.

    `name`: of the object that `audit show` is asked for; None: it is not asked. `served`: asks a daemon that runs.
    """
    said: dict[str, tuple[str, int]] = {}
    for command in ("status", "status --json", "feed status", "check", *(["audit show"] if name else [])):
        out = store(*command.split(), *([name] if name and command == "audit show" else []), code=ANY_CODE)
        said[command] = f"{out}{store.errors}" if command == "audit show" or not out else out, store.ended
    page, reasons, scraped = anyio.run(_server, settings) if served is None else served()
    return Surfaces(
        said["status"][0], printed_json(said["status --json"][0]), said["status"][1], page, reasons, scraped, *said["feed status"],
        *said["check"], *said.get("audit show", ("", None)),
    )  # fmt: skip


def printed_json(printed: str) -> dict[str, Any]:
    """Nothing: the store could not be opened, and one sentence says so."""
    return dict(json.loads(printed)) if printed.startswith("{") else {}


async def _server(settings: Settings) -> Served:
    runtime, registry = SystemRuntime(), CollectorRegistry()
    telemetry = Telemetry(registry=registry)
    async with open_backends(settings, runtime, writes=False, verify=False, telemetry=telemetry) as backends:
        sampler = Sampler(lambda: gather(backends, settings, runtime), questions_to(backends), runtime)
        await sampler.sample()
        now = runtime.monotonic()
        worker = SetWorker(answered_at=now, passed_at=now, outages=Outages(runtime, "recovery-1"))
        view = ServerView(sampler, Decisions(runtime), worker, runtime, settings)
        registry.register(StatusMetrics(view.status, view.age_s))
        app = make_app(view, registry, None)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as browser:
            page, ready, metrics = [await browser.get(address) for address in ("/status.json", "/readyz", "/metrics")]
            before = Scraped(metrics.text, time.time())
            await anyio.sleep(0.1)  # so that an age can be seen to grow
            began = time.time()  # an age grows by more, however busy the machine is
            await sampler.sample()
            after = Scraped((await browser.get("/metrics")).text, began)
    assert ready.status_code == (503 if ready.json()["reasons"] else 200)
    return page.json(), ready.json()["reasons"], Target(DAEMON, before, after)
