"""URLs with a custom `AdminSite`, which has another name and another address than Django's."""

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.urls import path


class OperationsSite(AdminSite):
    """A site for operators only."""

    site_header = "Operations"
    site_url = None


site = OperationsSite(name="operations")
for model, model_admin in admin.site._registry.items():
    if model._meta.app_label == "pgqueue":
        site.register(model, type(model_admin))

urlpatterns = [path("ops/console/", site.urls)]
