"""The tasks of a shop as they were. Becomes `shop/tasks.py` in the previous release's tree."""

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


@task
def send_bill(path: str) -> None:
    """Gets another name."""
    note(path, "send_bill")


@task
def greet(path: str, name: str) -> None:
    """Has an argument renamed."""
    note(path, f"greet-{name}")


@task
def paint(path: str) -> None:
    """Gets an argument more, with a default."""
    note(path, "paint")


def timed(times: Times) -> list[Times]:
    """The schedule given, in the test of schedules."""
    return [times] if SCHEDULED else []


@task(schedule=timed(every(seconds=1, name="sweep", args=["earlier"])))
def sweep(what: str) -> None:
    """Is called with something else."""


@task(schedule=timed(every(seconds=1)))
def retire(path: str = "") -> None:
    """Goes, with its schedule."""
