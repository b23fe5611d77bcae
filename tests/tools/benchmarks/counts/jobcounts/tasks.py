"""The tasks that are counted. Their own calls and instructions do not count."""

from django_pgqueue import task

from .models import Visit


@task
def plain(number: int) -> None:
    """Do nothing."""


@task
async def coroutine(number: int) -> None:
    """Do nothing, on the event loop."""


@task(atomic=True)
def atomic(number: int) -> None:
    """Do nothing, in one transaction with the completion."""


@task
def orm(number: int) -> None:
    """Read one row and write another one."""
    Visit.objects.get(pk=1)
    Visit.objects.create(number=number)
