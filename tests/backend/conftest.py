"""Fixtures for the tests of the backend for Django's task framework."""

from __future__ import annotations

import pytest

from django_pgqueue.backend.compat import task_backends

BACKEND = "django_pgqueue.backend.PgQueueBackend"


@pytest.fixture
def backend():
    """Return the backend with the alias `default`."""
    return task_backends["default"]


@pytest.fixture
def configure(settings):
    """Return a function that replaces the entry `default` in TASKS and returns its backend."""

    def configure(**entry):
        settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": [], **entry}}
        return task_backends["default"]

    return configure
