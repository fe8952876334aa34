"""A ticket and its attachments. The row of an attachment goes first, and its file when that is committed."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import models, transaction
from django.db.models.signals import post_delete
from django.dispatch import receiver


class Ticket(models.Model):  # type: ignore[misc]
    title = models.CharField(max_length=200)


class Attachment(models.Model):  # type: ignore[misc]
    ticket = models.ForeignKey(Ticket, on_delete=models.CASCADE, related_name="attachments")
    file = models.FileField(upload_to="tickets", max_length=200)


@receiver(post_delete, sender=Attachment)  # type: ignore[untyped-decorator]
def delete_file(instance: Attachment, using: str, **_: Any) -> None:
    """If the store is away then, Django logs it, and the object stays behind. The other files are deleted."""
    transaction.on_commit(partial(instance.file.storage.delete, instance.file.name), using=using, robust=True)
