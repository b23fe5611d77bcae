"""The tasks of a shop in the next release. The file becomes `shop/tasks.py` in the tree of that release."""

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


@task(aliases=["shop.tasks.send_bill"])
def send_invoice(path: str) -> None:
    """Write the name of this task, which has another name in the previous release."""
    note(path, "send_invoice")


@task
def greet(path: str, person: str) -> None:
    """Write a greeting. The previous release calls the argument `name`."""
    note(path, f"greet-{person}")


@task
def paint(path: str, colour: str = "red") -> None:
    """Write the colour. The previous release does not have this argument."""
    note(path, f"paint-{colour}")


@task
def wrap(path: str) -> None:
    """Write the name of this task, which the previous release does not have."""
    note(path, "wrap")


def timed(*times: Times) -> list[Times]:
    """Return the given schedules in the test of schedules, otherwise none."""
    return [*times] if SCHEDULED else []


@task(schedule=timed(every(seconds=1, name="sweep", args=["later"]), every(seconds=1, name="polish", args=["new"])))
def sweep(what: str) -> None:
    """Do nothing. The previous release schedules this task with another argument and without the second schedule."""
