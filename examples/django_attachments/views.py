"""Attaches files to a ticket, and lists them with links. Put the login of your service before it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils.deprecation import MiddlewareMixin

from examples.django_attachments.models import Attachment, Ticket
from tiered import OutcomeUnknownError, RateLimitedError, UnavailableError


def attachments(request: HttpRequest, ticket: int) -> JsonResponse:
    of = get_object_or_404(Ticket, pk=ticket)
    for file in request.FILES.getlist("file"):
        Attachment.objects.create(ticket=of, file=file)
    return JsonResponse({"attachments": [{"name": each.file.name, "url": each.file.url} for each in of.attachments.order_by("pk")]})


class StoreErrors(MiddlewareMixin):  # type: ignore[misc]
    """Tells the client that it may try again."""

    def process_exception(self, _: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, UnavailableError | OutcomeUnknownError):
            return None
        status = 429 if isinstance(error, RateLimitedError) else 503 if isinstance(error, UnavailableError) else 504
        return JsonResponse({"error": str(error)}, status=status, headers={"Retry-After": "1"})


urlpatterns = [path("tickets/<int:ticket>/attachments", attachments)]
