"""The addresses of the daemon's HTTP server. Only GET and HEAD; each answer is made from memory.

    /healthz       200: the process lives and its event loop runs
    /readyz        200 or 503, with the reasons
    /metrics       for Prometheus
    /status.json   the status, its age, and whether each service answers
    /recent.json   points of the charts, the last log lines, the runs of the audit
    /audits/RUN    the report of a run, if `daemon.audit_reports` and `daemon.show_objects` are set
    /              the page, and its files

Every answer carries headers that keep a browser from loading anything from elsewhere, from guessing types and from
telling other sites of the page. A server that listens on this machine alone refuses other names for it: otherwise a
page on the internet could point a name of its own at 127.0.0.1, and read the status through the operator's browser.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from changelog.base.runtime import Runtime
from recovery.http.audits import AuditRun, audit_runs, report_of
from recovery.http.server_view import ServerView

PAGE = Path(__file__).parent / "page"
FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
    "uplot/uPlot.iife.min.js": ("uplot/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    "uplot/uPlot.min.css": ("uplot/uPlot.min.css", "text/css; charset=utf-8"),
}
"""Each file of the page by its address. There are no others, so no address leads to another file."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
"""A report is one file with its styles inside, and it has no scripts."""

HEADERS = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin", "cross-origin-opener-policy": "same-origin", "cache-control": "no-store",
}  # fmt: skip
AUDITS_EVERY_S = 30.0
"""The directory of audits is read at most this often."""


def make_app(view: ServerView, registry: CollectorRegistry, hosts: Collection[str] | None) -> ASGIApp:
    """Returns the ASGI application. `hosts`: the names that requests may call this machine; None: any."""
    audits = _Audits(view.settings.daemon.audit_reports, view.runtime)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(_: Request) -> Response:
        reasons = view.reasons()
        about = view.about()
        return _json({"ready": not reasons, "reasons": reasons, **about["daemon"], "services": about["services"]}, 503 if reasons else 200)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def status(_: Request) -> Response:
        known = view.status()
        return _json({**(view.nothing_yet() if known is None else known), **view.about()})

    async def recent(_: Request) -> Response:
        return _json({**view.recent(), "audits": await audits.shown(linked=view.settings.daemon.show_objects)})

    async def report(request: Request) -> Response:
        directory = view.settings.daemon.audit_reports
        if directory is None or not view.settings.daemon.show_objects:
            raise HTTPException(404)
        found = await to_thread.run_sync(report_of, directory, request.path_params["run"])
        if found is None:
            raise HTTPException(404)
        return FileResponse(found, media_type="text/html; charset=utf-8", headers={"content-security-policy": REPORT_POLICY})

    routes = [
        Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics), Route("/status.json", status),
        Route("/recent.json", recent), Route("/audits/{run}", report),
        *(Route(f"/{address}", _file(PAGE / name, kind)) for address, (name, kind) in FILES.items()),
    ]  # fmt: skip
    app = Starlette(routes=routes, exception_handlers={404: _not_found, Exception: _failed})
    app.router.redirect_slashes = False
    return Guarded(app, hosts)


def _file(path: Path, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = path.read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, headers={"content-type": kind})

    return answer


def _json(value: object, code: int = 200) -> Response:
    return Response(json.dumps(value, allow_nan=False) + "\n", code, media_type="application/json")


async def _not_found(_: Request, __: Exception) -> Response:
    return PlainTextResponse("there is nothing here: the page is at /\n", 404)


async def _failed(_: Request, __: Exception) -> Response:
    return PlainTextResponse("this is an error of the daemon's server: its log has it\n", 500)


class _Audits:
    """The runs of the audit, read again when they are older than `AUDITS_EVERY_S`."""

    def __init__(self, directory: Path | None, runtime: Runtime) -> None:
        self._directory = directory
        self._runtime = runtime
        self._runs: Sequence[AuditRun] = ()
        self._problem: str | None = None
        self._read_at: float | None = None

    async def shown(self, *, linked: bool) -> dict[str, Any] | None:
        """As JSON. None: no directory is set. `linked`: whether their reports may be read."""
        if self._directory is None:
            return None
        now = self._runtime.monotonic()
        if self._read_at is None or now - self._read_at > AUDITS_EVERY_S:
            self._read_at = now
            try:
                self._runs, self._problem = await to_thread.run_sync(audit_runs, self._directory), None
            except OSError as error:
                self._runs, self._problem = (), f"the directory daemon.audit_reports cannot be listed: {error.strerror}"
        return {"runs": [{**asdict(run), "has_report": run.has_report and linked} for run in self._runs], "problem": self._problem}


class Guarded:
    """Refuses all but some methods, and other names of this machine. Adds the headers to every answer.

    `hosts`: the names that requests may call this machine; None: any. `methods`, `told`: what is allowed, and what the
    answer to another method says. `fix`: how this server gets another name.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] | None, methods: Collection[str] = ("GET", "HEAD"),
        told: str = "only GET and HEAD: nothing can be changed here", fix: str = "set daemon.http_host",
    ) -> None:  # fmt: skip
        self._app = app
        self._methods = methods
        self._told = told
        self._fix = fix
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._answering(scope)(scope, receive, send_guarded)

    def _answering(self, scope: Scope) -> ASGIApp:
        if scope["method"] not in self._methods:
            return PlainTextResponse(f"{self._told}\n", 405, headers={"allow": ", ".join(self._methods)})
        if self._hosts is not None and _host(Headers(scope=scope).get("host", "")) not in self._hosts:
            return PlainTextResponse(
                "this server listens on this machine alone and does not know the name that was asked for: "
                f"use localhost, or {self._fix}\n", 421,
            )  # fmt: skip
        return self._app


def _host(header: str) -> str:
    """The name without the port, in lower case."""
    name, colon, port = header.strip().lower().rpartition(":")
    name = name if colon and port.isdecimal() else header.strip().lower()
    return name[1:-1] if name.startswith("[") and name.endswith("]") else name
