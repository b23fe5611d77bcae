"""The tasks of the shop as they are to be. Becomes `shop/tasks.py` in the next release's tree."""

import os
from pathlib import Path

import django_pgqueue
from django_pgqueue import Times, every, task

SCHEDULED = "SHOP_SCHEDULED" in os.environ
"""Whether the tasks below have their schedules: in the test of these alone."""
RELEASE = Path(django_pgqueue.__file__).parents[1].name


def note(path: str, word: object) -> None:
    """Append a word and the release whose package runs this: one write, so that lines do not mix."""
    with open(path, "ab", buffering=0) as file:
        file.write(f"{word} {RELEASE}\n".encode())


@task
def ship(path: str, number: int) -> None:
    """Is the same in both releases."""
    note(path, number)


@task(aliases=["shop.tasks.send_bill"])
def send_invoice(path: str) -> None:
    """Had another name."""
    note(path, "send_invoice")


@task
def greet(path: str, person: str) -> None:
    """Called this argument `name`."""
    note(path, f"greet-{person}")


@task
def paint(path: str, colour: str = "red") -> None:
    """Has an argument more."""
    note(path, f"paint-{colour}")


@task
def wrap(path: str) -> None:
    """Is new."""
    note(path, "wrap")


def timed(*times: Times) -> list[Times]:
    """The schedules given, in the test of schedules."""
    return [*times] if SCHEDULED else []


@task(schedule=timed(every(seconds=1, name="sweep", args=["later"]), every(seconds=1, name="polish", args=["new"])))
def sweep(what: str) -> None:
    """Was called with something else, and is called in another way besides."""
