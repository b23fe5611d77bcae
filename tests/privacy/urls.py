"""The URLs of a project that lets browsers poll for jobs."""

from datetime import timedelta

from django.contrib import admin
from django.urls import path

from django_pgqueue.views import batch_status, job_status

urlpatterns = [
    path("admin/", admin.site.urls),
    path("jobs/<str:token>/", job_status),
    path("batches/<str:token>/", batch_status),
    path("quick_batches/<str:token>/", batch_status, {"max_age": timedelta(seconds=60)}),
    path("quick/<str:token>/", job_status, {"max_age": timedelta(seconds=60)}),
]
