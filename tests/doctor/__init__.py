"""Tests of `django_pgqueue.doctor`."""
