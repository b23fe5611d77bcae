"""Tasks of the tests of `django_pgqueue.contrib`, which fail, and set users and tags of Sentry."""

from __future__ import annotations

import os

import sentry_sdk

from django_pgqueue import Cancel, Retry, Snooze, task


def charge(number: str) -> None:
    raise ValueError("declined")


@task(max_attempts=1)
def set_user_and_fail(user: str) -> None:
    sentry_sdk.set_user({"id": user})
    sentry_sdk.add_breadcrumb(message=f"crumb of {user}")
    raise ValueError("as asked")


@task(max_attempts=1)
def fail_at_once(order: str = "") -> None:
    raise ValueError("as asked")


@task(max_attempts=1)
async def set_user_in_coroutine(user: str) -> None:
    sentry_sdk.set_user({"id": user})
    raise ValueError("as asked")


@task(max_attempts=1)
async def fail_in_coroutine(order: str = "") -> None:
    raise ValueError("as asked")


@task(max_attempts=2, backoff=0)
def fail_twice() -> None:
    raise ValueError("as asked")


@task(max_attempts=1, sensitive=["card"])
def pay(card: str, order: int = 7) -> None:
    digits = card
    sentry_sdk.capture_message("paying", level="error")
    charge(digits)


@task(max_attempts=2, backoff=0)
def direct(kind: str) -> None:
    raise {"snooze": Snooze(60), "cancel": Cancel("enough"), "retry": Retry(after=0)}[kind]


@task(max_attempts=1, isolation="process")
def fail_apart(user: str) -> None:
    sentry_sdk.set_user({"id": user})
    try:
        charge(user)
    except ValueError as error:
        raise RuntimeError("no money") from error


@task(max_attempts=1, isolation="process")
def crash_apart() -> None:
    os._exit(3)


@task
def crash_worker() -> None:
    os._exit(3)


@task(atomic=True, max_attempts=1)
def fail_in_transaction() -> None:
    raise ValueError("as asked")


@task(max_attempts=1)
def nightly(how: str = "ok") -> None:
    if how != "ok":
        raise ValueError("as asked")


@task
def often() -> None:
    """Run more often than a monitor of Sentry can be checked."""


def work() -> None:
    """Do what a test puts in the place of this function."""


@task(max_attempts=1)
def works() -> None:
    work()
