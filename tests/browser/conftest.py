"""A real browser, a live server, and an operator who is logged in.

The tests need a display of nothing: Chromium runs headless. They wait for conditions of the page and never sleep. Each
test has a browser context of its own, and each pytest-xdist process a database and a server of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page
from pytest_django import DjangoDbBlocker

from . import chromium, seed
from .server import live_server
from .settings import WITH_UNFOLD

collect_ignore_glob = ["test_[!u]*.py"] if WITH_UNFOLD else ["test_unfold.py"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the Chromium of this machine."""
    with chromium.start() as started:
        yield started


@pytest.fixture(scope="session")
def server(
    django_test_environment: None, django_db_modify_db_settings: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[str]:
    """Make a database, start the server on a free port, and return its URL.

    The tests commit, so none of them uses the fixtures of pytest-django, which would empty the tables of all apps.
    """
    with django_db_blocker.unblock(), live_server() as url:
        yield url


@pytest.fixture(scope="session")
def contents() -> set[str]:
    """Return what the tables contain: "the night" if no test has changed it since it was inserted."""
    return set()


@pytest.fixture
def shop(server: str, contents: set[str], request: pytest.FixtureRequest) -> Any:
    """Fill the tables with the night of the shop, and return Django's connection.

    Tests with the marker `reads_only` share the rows: filling the tables takes as long as opening a page.
    """
    if "the night" not in contents:
        User.objects.all().delete()
        LogEntry.objects.all().delete()
        seed.fill(connection)
        seed.clear(connections["archive"])
        contents.add("the night")
    seed.beat(connection)
    if not request.node.get_closest_marker("reads_only"):
        contents.clear()
    return connection


@pytest.fixture
def open_context(browser: Browser, server: str, shop: Any) -> Iterator[Callable[..., BrowserContext]]:
    """Return a function that makes a browser context in which anna, or another user, is logged in.

    At the end, the fixture fails the test if a page broke the Content-Security-Policy or raised a JavaScript error.
    """
    opened: list[BrowserContext] = []
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and "status of 4" not in message.text:
            errors.append(f"{message.text} ({message.page.url if message.page else ''})")

    def make(user: User | None = None, **options: Any) -> BrowserContext:
        context = chromium.logged_in(browser, server, user or chromium.administrator(), **options)
        context.on("console", note)
        context.on("weberror", lambda error: errors.append(str(error.error)))
        opened.append(context)
        return context

    yield make
    for context in opened:
        context.close()
    assert not errors, "\n".join(errors)


@pytest.fixture
def admin_client(shop: Any) -> Client:
    """Return a client of an administrator, for what needs no browser."""
    client = Client()
    client.force_login(chromium.administrator())
    return client


@pytest.fixture
def page(open_context: Callable[..., BrowserContext]) -> Page:
    """Return an empty page of an administrator."""
    return open_context().new_page()
