"""Photos of users. A browser sends them to a link, and shows them by links: no byte passes through this service.

    export TIERED_CONFIG=tiered.yaml
    uvicorn --factory --port 8000 examples.photos:create_app
    uvicorn --factory --port 8001 --no-access-log examples.photos:create_links

What strangers stored is shown from a host of its own, here from another port. So the script of the page asks a host
that is not its own (CORS), and tiered.yaml says that it may:

    directory: data
    links: {base_url: "http://127.0.0.1:8001", keys: [WHAT-OPENSSL-PRINTS], origins: ["http://127.0.0.1:8000"]}
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote
from uuid import UUID, uuid4

from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse

import tiered.asgi
from tiered import ListEntry, Metadata, ObjectId, ObjectPrefix, Settings, TieredStorage, open_storage

TYPES = {"image/jpeg", "image/png", "image/webp"}  # browsers run no script in these, and take nothing else for one of these
SIZE_MAX, AT_ONCE, GOOD_FOR = 20_000_000, 50, timedelta(minutes=15)
STATUSES = {  # a more special error counts before another one
    tiered.UnavailableError: 503, tiered.RateLimitedError: 429, tiered.OutcomeUnknownError: 504, tiered.UploadEndedError: 410,
    tiered.InvalidRequestError: 400, tiered.ConfigurationError: 500, tiered.TieredError: 500,
}  # fmt: skip
routes = APIRouter()


def create_app(source: str | Settings | None = None) -> FastAPI:
    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        async with open_storage(source or os.environ["TIERED_CONFIG"], recover=True) as app.state.storage:
            yield

    app = FastAPI(lifespan=life)
    app.include_router(routes)
    app.add_exception_handler(tiered.TieredError, answer_error)
    return app


def create_links() -> Any:
    """What answers the links. `tiered.asgi:create_app` itself answers only those to read."""
    return tiered.asgi.create_app(writes=True)


def user_of() -> str:
    """Who asks. Put the login of your service here: the store asks nobody who he is."""
    return "anna"


def storage_of(request: Request) -> TieredStorage:
    return request.app.state.storage  # type: ignore[no-any-return]


Store = Annotated[TieredStorage, Depends(storage_of)]
User = Annotated[str, Depends(user_of)]


@routes.get("/")
async def page() -> FileResponse:
    return FileResponse(Path(__file__).with_name("photos.html"))


# --8<-- [start:upload]
@routes.post("/photos")
async def begin(store: Store, user: User, name: Annotated[str, Body()], type: Annotated[str, Body()]) -> dict[str, Any]:
    """Begins an upload. The browser PUTs the bytes to `url`, and then asks to complete it."""
    if type not in TYPES:
        raise HTTPException(415, f"{name}: a photo is JPEG, PNG or WebP")
    photo = ObjectId.create("photos", str(uuid4()), scopes={"user": user})
    metadata = Metadata(content_type=type, filename=quote(name))
    signed = await store.sign_put(photo, GOOD_FOR, metadata, size_max=SIZE_MAX)
    return {"key": photo.key, "upload": str(signed.upload.id), "url": signed.url}


@routes.post("/photos/{key}/{upload}")
async def complete(store: Store, user: User, key: UUID, upload: str) -> dict[str, Any]:
    """Makes a photo of what came. Asked again, it answers the same. What nobody completes is removed in a week."""
    photo = ObjectId.create("photos", str(key), scopes={"user": user})
    return {"size": (await store.multipart(photo, upload).complete()).size}
# --8<-- [end:upload]


@routes.get("/photos")
async def listed(store: Store, user: User, after: str | None = None) -> dict[str, Any]:
    """Some of the user's photos, with a link to show and one to save each. `next`: where to go on."""
    mine = ObjectPrefix.create("photos", scopes={"user": user})
    found = await store.list_page(mine, page_token=after, limit=AT_ONCE, metadata=True)
    photos = [await with_links(store, entry) for entry in found.objects]
    return {"photos": [photo for photo in photos if photo["show"]], "next": found.next_page_token}


async def with_links(store: TieredStorage, entry: ListEntry) -> dict[str, Any]:
    """`show` is None if the photo was deleted meanwhile."""
    show, save = [await store.sign_get(entry.object_id, GOOD_FOR, disposition=how) for how in ("inline", "attachment")]
    name = unquote(entry.metadata.filename or "") if entry.metadata else ""
    return {"key": entry.object_id.key, "name": name, "size": entry.size, "show": show, "save": save}


async def answer_error(_: Request, error: Exception) -> JSONResponse:
    status = next(STATUSES[kind] for kind in type(error).mro() if kind in STATUSES)
    return JSONResponse({"detail": "the store needs its operator" if status == 500 else str(error)}, status)
