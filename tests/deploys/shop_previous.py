"""The tasks of a shop in the previous release. The file becomes `shop/tasks.py` in the tree of that release."""

import os
from pathlib import Path

import django_pgqueue
from django_pgqueue import Times, every, task

SCHEDULED = "SHOP_SCHEDULED" in os.environ
"""Whether the tasks below have schedules. Only the test of schedules sets this."""
RELEASE = Path(django_pgqueue.__file__).parents[1].name


def note(path: str, word: object) -> None:
    """Append a word and the release whose package runs this. It is one write, so that lines do not mix."""
    with open(path, "ab", buffering=0) as file:
        file.write(f"{word} {RELEASE}\n".encode())


@task
def ship(path: str, number: int) -> None:
    """Write a number. This task is the same in both releases."""
    note(path, number)


@task
def send_bill(path: str) -> None:
    """Write the name of this task, which has another name in the next release."""
    note(path, "send_bill")


@task
def greet(path: str, name: str) -> None:
    """Write a greeting. The next release renames the argument."""
    note(path, f"greet-{name}")


@task
def paint(path: str) -> None:
    """Write the name of this task. The next release adds an argument with a default."""
    note(path, "paint")


def timed(times: Times) -> list[Times]:
    """Return the given schedule in the test of schedules, otherwise none."""
    return [times] if SCHEDULED else []


@task(schedule=timed(every(seconds=1, name="sweep", args=["earlier"])))
def sweep(what: str) -> None:
    """Do nothing. The next release schedules this task with another argument."""


@task(schedule=timed(every(seconds=1)))
def retire(path: str = "") -> None:
    """Do nothing. The next release removes this task and its schedule."""
