"""The URLs of the example project: the admin, a redirect to it, and the shop's view for the payment service."""

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from example_project.shop.views import payment

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("shop/payment/", payment),
]
