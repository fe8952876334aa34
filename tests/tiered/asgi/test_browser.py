"""Links in a real browser: a script of another site uses them, and what a stranger has stored runs none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from tests.given.chromium import running_browser
from tests.given.served_app import served
from tests.given.signed_links import LINKS
from tiered import Metadata, ObjectId, Settings
from tiered.asgi import LinkApp
from tiered.testing import memory_storage
from tiered.testing.in_memory import NOWHERE

pytestmark = [pytest.mark.slow, pytest.mark.browser]
HOUR = timedelta(hours=1)
CAT, PAGE, PICTURE = (ObjectId.create("photos", key) for key in ("cat", "page.html", "dot.svg"))
CONTENT = b"0123456789" * 100_000
HTML = b"<title>no</title><script>document.title = 'it ran'; fetch('/x')</script>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>document.documentElement.id = 'ran'</script></svg>"

SCRIPT = """async ({read, write, large}) => {
    const told = {};
    const put = await fetch(write, {method: "PUT", body: "x".repeat(3000000), headers: {"Content-Type": "text/plain"}});
    told.put = [put.status, (put.headers.get("ETag") || "").length > 2];
    const late = await fetch(write, {method: "PUT", body: "y", headers: {"If-None-Match": "*"}});
    told.late = [late.status, await late.text()];
    const refused = await fetch(large, {method: "PUT", body: "z".repeat(3000000)});
    told.large = [refused.status, await refused.text()];
    const range = await fetch(read, {headers: {"Range": "bytes=1-4", "If-Match": "*"}});
    told.range = [range.status, await range.text(), range.headers.get("Content-Range")];
    return told;
}"""


@contextmanager
def running(ports: dict[str, Any]) -> Iterator[None]:
    """A store with links at one port, and a site at another that may use them. `ports` tells what the browser opens."""
    begun, stop = threading.Event(), threading.Event()

    async def site(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"<title>a site</title>"})

    async def serve() -> None:
        async with served(site, lifespan="off") as site_port:
            origin = f"http://127.0.0.1:{site_port}"
            settings = Settings(directory=NOWHERE, links=LINKS.model_copy(update={"origins": (origin,)}))
            async with memory_storage(settings) as store, served(LinkApp(lambda: store), lifespan="off", root_path="/links") as port:
                def at(url: str | None) -> str:
                    return f"http://127.0.0.1:{port}{urlsplit(str(url)).path.removeprefix('/links')}"

                await store.put(CAT, CONTENT)
                await store.put(PAGE, HTML, Metadata(content_type="text/html"))
                await store.put(PICTURE, SVG, Metadata(content_type="image/svg+xml"))
                write = await store.sign_put(ObjectId.create("photos", "written"), HOUR)
                large = await store.sign_put(ObjectId.create("photos", "large"), HOUR, size_max=1000)
                ports.update({
                    "site": origin, "read": at(await store.sign_get(CAT, HOUR)), "page": at(await store.sign_get(PAGE, HOUR)),
                    "svg": at(await store.sign_get(PICTURE, HOUR)), "write": at(write.url), "large": at(large.url),
                    "other": f"http://localhost:{site_port}",
                })  # fmt: skip
                begun.set()
                await anyio.to_thread.run_sync(stop.wait)
                ports["size"] = [part.size for part in await write.upload.parts()]

    thread = threading.Thread(target=partial(anyio.run, serve))
    thread.start()
    try:
        assert begun.wait(30), "it did not begin"
        yield
    finally:
        stop.set()
        thread.join()


def test_a_script_of_another_site_uses_links_and_a_stored_page_runs_none() -> None:
    shown: dict[str, Any] = {}
    with running_browser() as browser, running(shown):
        page = browser.new_page()
        page.goto(shown["site"])
        told = page.evaluate(SCRIPT, {name: shown[name] for name in ("read", "write", "large")})
        assert told["put"] == [200, True]
        assert told["late"] == [412, "the condition of the request does not hold\n"]
        assert told["large"] == [413, "a part of at most 1000 bytes is taken\n"]
        assert told["range"] == [206, "1234", f"bytes 1-4/{len(CONTENT)}"]
        page.goto(shown["other"])  # the same page, of an origin that the settings do not name
        assert "Failed to fetch" in page.evaluate("url => fetch(url).then(() => 'it came', error => String(error))", shown["read"])
        page.goto(shown["page"])
        assert page.title() == "no"
        page.goto(shown["svg"])
        assert page.evaluate("document.documentElement.id") == ""
    assert shown["size"] == [3_000_000]
