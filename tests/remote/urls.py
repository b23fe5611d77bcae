"""The URLs of the tests of remote workers."""

from django.urls import include, path

urlpatterns = [
    path("remote/", include("django_pgqueue.contrib.remote.urls")),
    path("other/", include("django_pgqueue.contrib.remote.urls"), {"database": "other"}),
]
