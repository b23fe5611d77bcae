"""A task with a limit, for workers that a test starts. The tests themselves do not import it."""

from django_pgqueue import Limit, task


@task(limit=Limit("tests.until_empty", concurrency=1))
def limited() -> None:
    """Declare the limit."""
