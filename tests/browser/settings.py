"""Settings of the browser tests: the example project's, with a strict Content-Security-Policy on every page.

With PGQUEUE_BROWSER_THEME=unfold, the admin has the theme of django-unfold, and the pages have no policy.
"""

import os

from example_project import settings as example
from example_project.settings import DEFAULT_AUTO_FIELD, STATIC_URL, TEMPLATES, TIME_ZONE, USE_TZ

__all__ = [
    "DEFAULT_AUTO_FIELD",
    "STATIC_URL",
    "TEMPLATES",
    "TIME_ZONE",
    "USE_TZ",
]

SECRET_KEY = "tests"
DATABASES = {
    **example.DATABASES,
    "archive": {**example.DATABASES["default"], "TEST": {"NAME": "test_pgqueue_archive"}},
}
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "example_project.urls"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SHOP_PAYMENT_SECRET = "tests"
WITH_UNFOLD = os.environ.get("PGQUEUE_BROWSER_THEME") == "unfold"
# The scripts of django-unfold evaluate strings, which a strict policy forbids.
MIDDLEWARE = [*([] if WITH_UNFOLD else ["tests.browser.policy.ContentSecurityPolicy"]), *example.MIDDLEWARE]
INSTALLED_APPS = [*(["unfold"] if WITH_UNFOLD else []), *example.INSTALLED_APPS]
