"""The app's entry in INSTALLED_APPS."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The shop."""

    name = "example_project.shop"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Shop"
