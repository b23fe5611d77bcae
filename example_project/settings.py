"""Settings of the example project. Settings that differ between machines come from the environment."""

import django
import environ
from django.core.exceptions import ImproperlyConfigured

env = environ.Env()

DEBUG = env.bool("DEBUG", default=True)
FOR_DEVELOPMENT = "insecure-for-development-only"
SECRET_KEY = env.str("SECRET_KEY", default=FOR_DEVELOPMENT)
SHOP_PAYMENT_SECRET = env.str("SHOP_PAYMENT_SECRET", default=FOR_DEVELOPMENT)
if not DEBUG and FOR_DEVELOPMENT in {SECRET_KEY, SHOP_PAYMENT_SECRET}:
    # Everybody can read this value, and could sign sessions, job tokens and payments with it.
    raise ImproperlyConfigured(
        "The example project needs secrets of its own without DEBUG: set the environment variables SECRET_KEY and "
        "SHOP_PAYMENT_SECRET, or DEBUG=1 on your own machine."
    )
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=[])

INSTALLED_APPS = [
    "django_pgqueue",  # before the admin, whose index page then shows what is wrong with the queue
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "example_project.library",
    "example_project.shop",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",  # the console in the language of the browser
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# Without DATABASE_URL, the first connection starts a PostgreSQL server for this checkout.
DATABASES = {
    "default": env.db("DATABASE_URL")
    if "DATABASE_URL" in env
    else {"ENGINE": "example_project.embedded", "NAME": "postgres"},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

ROOT_URLCONF = "example_project.urls"
STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_TZ = True

# Mail goes to the log of the worker.
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.console.EmailBackend"}}
else:
    EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"django_pgqueue": {"handlers": ["console"], "level": "INFO"}},
}
