"""Attachments of tickets: an app of Django whose files are objects of a store, beside rows of Django's own.

    INSTALLED_APPS = [..., "examples.django_attachments"]         # and `manage.py migrate --run-syncdb`
    MIDDLEWARE = [..., "examples.django_attachments.views.StoreErrors"]
    STORAGES = {"default": {"BACKEND": "examples.django_attachments.storage.ObjectStorage"}, ...}

The settings of the store are in the file that TIERED_CONFIG names. They need `links`, and the links are answered by
`uvicorn --factory tiered.asgi:create_app` beside Django. Recovery runs beside it, too: `tiered recover`.
"""
