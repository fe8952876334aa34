"""examples/django_attachments: files beside the rows of Django's models, in the order in which both are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import django
import pytest
from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.db import transaction
from django.test import Client, override_settings
from django.utils import timezone
from httpx import ASGITransport, AsyncClient, Response

import tiered
from tiered import UnavailableError
from tiered.asgi import LinkApp

APP = "examples.django_attachments"
CONFIG = "links: {base_url: 'http://files.example.com', keys: [a key for tests of some 40 letters]}\n"

if not settings.configured:
    settings.configure(
        INSTALLED_APPS=[APP], MIDDLEWARE=[f"{APP}.views.StoreErrors"], ROOT_URLCONF=f"{APP}.views", ALLOWED_HOSTS=["testserver"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()

from examples.django_attachments.models import Attachment, Ticket  # noqa: E402 - Django must have its settings first
from examples.django_attachments.storage import ObjectStorage  # noqa: E402

LARGE = bytes(range(256)) * 8_000
STORAGES = {"default": {"BACKEND": f"{APP}.storage.ObjectStorage"}}


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "tiered.yaml").write_text(f"directory: {tmp_path}/data\n{CONFIG}")
    monkeypatch.setenv("TIERED_CONFIG", str(tmp_path / "tiered.yaml"))
    call_command("migrate", run_syncdb=True, verbosity=0)
    with override_settings(STORAGES=STORAGES):
        yield tmp_path / "tiered.yaml"
        Attachment.objects.all().delete()
        default_storage.store.close()


@pytest.fixture
def ticket() -> Ticket:
    made: Ticket = Ticket.objects.create(title="it leaks")
    return made


def names() -> list[str]:
    return [entry.object_id.key for entry in default_storage.store().list()]


def content(name: str) -> bytes:
    with default_storage.open(name) as file:
        return bytes(file.read())


def rolled_back(work: Callable[[], object]) -> None:
    with transaction.atomic():
        work()
        transaction.set_rollback(True)


def opened(config: Path, url: str) -> Response:
    async def open_link() -> Response:
        async with (
            tiered.open_storage(config, writes=False) as storage, AsyncClient(transport=ASGITransport(LinkApp(lambda: storage))) as client,
        ):  # fmt: skip
            return await client.get(url)

    return anyio.run(open_link)


def test_what_is_attached_is_listed_with_a_link_and_goes_with_its_row(ticket: Ticket, config: Path) -> None:
    place, client = f"/tickets/{ticket.pk}/attachments", Client()
    for content in (LARGE, b"small"):
        assert client.post(place, {"file": SimpleUploadedFile("photo.jpg", content, "text/html")}).status_code == 200
    first, second = client.get(place).json()["attachments"]
    assert first["name"] == "tickets/photo.jpg" and second["name"] != first["name"]
    got = opened(config, first["url"])
    assert (got.content, got.headers["content-type"]) == (LARGE, "image/jpeg"), "a browser's word for the type counts for nothing"
    assert got.headers["content-disposition"].startswith("attachment")
    ticket.delete()
    assert names() == [] and opened(config, first["url"]).status_code == 404


def test_a_file_can_be_read_twice_and_anywhere_and_tells_its_size_and_its_time(ticket: Ticket) -> None:
    attachment = Attachment.objects.create(ticket=ticket, file=SimpleUploadedFile("a.bin", LARGE))
    with Attachment.objects.get(pk=attachment.pk).file.open() as file:
        assert (file.read(), file.seek(1000), file.read(3)) == (LARGE, 1000, LARGE[1000:1003])
    assert attachment.file.size == len(LARGE)
    name = attachment.file.name
    assert abs(default_storage.get_modified_time(name) - timezone.now()) < timedelta(hours=1)
    with override_settings(USE_TZ=False):
        assert default_storage.get_modified_time(name).tzinfo is None


def test_text_becomes_utf_8_and_a_name_that_is_taken_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_storage.save("note.txt", ContentFile("grüße")) == "note.txt"
    told, exists = iter([False]), ObjectStorage.exists  # somebody else was faster, after both saw that the name was free
    monkeypatch.setattr(ObjectStorage, "exists", lambda self, name: next(told, True) and exists(self, name))
    second = default_storage.save("note.txt", ContentFile(b"second"))
    assert second != "note.txt" and content(second) == b"second"
    assert content("note.txt") == "grüße".encode()


def test_a_row_that_is_rolled_back_names_no_file_and_a_deletion_that_is_rolled_back_keeps_it(ticket: Ticket) -> None:
    attachment = Attachment.objects.create(ticket=ticket, file=ContentFile(b"kept", "kept"))
    rolled_back(attachment.delete)
    assert names() == ["tickets/kept"] and content(Attachment.objects.get().file.name) == b"kept"
    rolled_back(lambda: Attachment.objects.create(ticket=ticket, file=ContentFile(b"left behind", "left")))
    assert names() == ["tickets/kept", "tickets/left"] and Attachment.objects.count() == 1


def test_a_file_that_is_gone_is_an_error_in_code_and_nothing_in_a_template() -> None:
    for ask in (default_storage.open, default_storage.size, default_storage.url, default_storage.get_modified_time):
        with pytest.raises(FileNotFoundError, match="gone"):
            ask("gone")
    assert not default_storage.exists("gone")
    default_storage.delete("gone")
    with pytest.raises(ValueError, match="open it with mode 'rb'"):
        default_storage.open("gone", "wb")


def test_a_store_that_is_away_is_a_503(ticket: Ticket, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **options: Any) -> None:
        raise UnavailableError("away")

    monkeypatch.setattr(default_storage.store(), "put", fail)
    got = Client().post(f"/tickets/{ticket.pk}/attachments", {"file": ContentFile(b"x", "x")})
    assert (got.status_code, got.json(), got["Retry-After"]) == (503, {"error": "away"}, "1")
    assert Attachment.objects.count() == 0
