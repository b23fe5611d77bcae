"""Yardstick (b): the task's function in a bare loop, on one connection of Django's. No queue at all."""

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems import ours
from tests.tools.benchmarks.systems.system import Load
from tests.tools.peers.place import Command

ADAPTER = """
from pathlib import Path


def start():
    pass


def enqueue_many(task, numbers):
    Path("numbers").write_text(f"{numbers.start} {numbers.stop}")
"""
LOOP = """
import signal
from pathlib import Path

import django

django.setup()
from app import tasks

for number in range(*map(int, Path("numbers").read_text().split())):
    tasks.touch.func(number)
signal.pause()  # what it used is looked up while it lives
"""


def worker(load: Load) -> Command:
    return ("loop.py",)


def unfinished(bench: Bench) -> int:
    return 0


SYSTEM = ours.SYSTEM._replace(
    name="bare",
    files={**ours.SYSTEM.files, "adapter.py": ADAPTER, "loop.py": LOOP},
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"touch"}),
    settings="one thread, one connection that lasts; no job is enqueued, claimed or finished",
    ways=frozenset({"bulk"}),
    sweep=(),
    processes=(1,),
)
