"""A module that no worker imports."""

from django_pgqueue.backend import task


@task
def lost():
    pass
