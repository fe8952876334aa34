"""Attachments of tickets: an app of Django whose files are objects of a store, beside rows of Django's.

    INSTALLED_APPS = [..., "examples.django_attachments"]         # and `manage.py migrate --run-syncdb`
    MIDDLEWARE = [..., "examples.django_attachments.views.StoreErrors"]
    STORAGES = {"default": {"BACKEND": "examples.django_attachments.storage.ObjectStorage"}, ...}

Settings need `links` (TIERED_CONFIG). Beside Django runs `uvicorn --factory tiered.asgi:create_app`, and recovery."""
