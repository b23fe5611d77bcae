"""What the tests of the backend share."""

from __future__ import annotations

import pytest

from django_pgqueue.backend.compat import task_backends

BACKEND = "django_pgqueue.backend.PgQueueBackend"


@pytest.fixture
def backend():
    """The backend of the default alias."""
    return task_backends["default"]


@pytest.fixture
def configure(settings):
    """Change the entry of TASKS."""

    def configure(**entry):
        settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": [], **entry}}
        return task_backends["default"]

    return configure
