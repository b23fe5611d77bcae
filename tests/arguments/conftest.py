"""Fixtures for typed arguments: the tables of the models, and settings with which workers find the tasks."""

import json

import pytest
from django.db import connection
from django.test import override_settings

from .models import Courier, FragileParcel, Parcel


@pytest.fixture(autouse=True)
def found_by_workers():
    """Let workers import the tasks of these tests."""
    with override_settings(PGQUEUE={"TASK_MODULES": ["tests.arguments.tasks"]}):
        yield


@pytest.fixture
def tables(db):
    """Create the tables of the models in the test's transaction."""
    with connection.schema_editor() as editor:
        for model in (Parcel, FragileParcel, Courier):
            editor.create_model(model)


@pytest.fixture
def through_postgres(db):
    """Return a function that stores JSON text in PostgreSQL and returns the decoded value that it reads back."""

    def store(text):
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s::json::text", [text])
            return json.loads(cursor.fetchone()[0])

    return store
