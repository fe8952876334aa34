"""An ASGI application that answers signed links to any object of a store. `storage.sign_get` makes them.

    app.mount("/links", LinkApp(lambda: storage))                Starlette, FastAPI: within an application
    uvicorn --factory tiered.asgi:create_app                     by itself; TIERED_CONFIG names the settings

    app.py          begin here: `LinkApp`: from a request to an answer; `create_app` opens a store, too
    http_rules.py   ranges, conditions and dates of RFC 9110 (pure); a service of yours may call two of them, too
    body.py         sends the bytes, to a client that may be slow or go away

It needs no framework, and runs wherever anyio does.
"""

from tiered.asgi.app import LinkApp, create_app
from tiered.asgi.http_rules import precondition, wanted_range

__all__ = ["LinkApp", "create_app", "precondition", "wanted_range"]
