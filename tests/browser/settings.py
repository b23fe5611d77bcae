"""Settings of the browser tests: the example project's, with a strict Content-Security-Policy on every page.

With PGQUEUE_BROWSER_THEME=unfold, the admin has the theme of django-unfold.
"""

import os

from example_project import settings as example
from example_project.settings import DATABASES, DEFAULT_AUTO_FIELD, STATIC_URL, TEMPLATES, TIME_ZONE, USE_TZ

__all__ = [
    "DATABASES",
    "DEFAULT_AUTO_FIELD",
    "STATIC_URL",
    "TEMPLATES",
    "TIME_ZONE",
    "USE_TZ",
]

SECRET_KEY = "tests"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "example_project.urls"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SHOP_PAYMENT_SECRET = "tests"
MIDDLEWARE = ["tests.browser.policy.ContentSecurityPolicy", *example.MIDDLEWARE]
WITH_UNFOLD = os.environ.get("PGQUEUE_BROWSER_THEME") == "unfold"
INSTALLED_APPS = [*(["unfold"] if WITH_UNFOLD else []), *example.INSTALLED_APPS]
