"""Attachments of tickets: an app of Django whose files are objects of a store, beside rows of Django's own.

    INSTALLED_APPS = [..., "examples.django_attachments"]         # and `manage.py migrate --run-syncdb`
    MIDDLEWARE = [..., "examples.django_attachments.views.StoreErrors"]
    STORAGES = {"default": {"BACKEND": "examples.django_attachments.storage.ObjectStorage"}, ...}

TIERED_CONFIG names settings with `links`. Beside Django run `uvicorn --factory tiered.asgi:create_app`, and recovery."""
