"""Start the Chromium of this machine, and log in. The browser tests and the program for the screenshots call it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, sync_playwright

# Playwright runs an event loop in the thread of the tests, and Django refuses queries in such a thread.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"

CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS: Final = 10_000
DESKTOP: Final = {"width": 1400, "height": 900}
LAPTOP: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 390, "height": 844}
ARGUMENTS: Final = (
    "--no-sandbox",  # containers have no user namespaces
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--force-color-profile=srgb", "--font-render-hinting=none"),
)


@contextmanager
def start() -> Iterator[Browser]:
    """Start Chromium, and end it."""
    found = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    assert found, f"The browser tests need one of these programs: {', '.join(CHROMIUM)}."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield browser
        browser.close()


def administrator() -> User:
    """Return the administrator anna."""
    return User.objects.get_or_create(username="anna", is_staff=True, is_superuser=True)[0]


def logged_in(browser: Browser, server: str, user: User, **options: Any) -> BrowserContext:
    """Return a browser context in which this user is logged in."""
    context = browser.new_context(base_url=server, **{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
    context.set_default_timeout(WAIT_MS)
    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": server}])
    return context
