"""What a benchmark knows of a system: its environment, its files, its commands, and how to look into its books."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.tools.benchmarks.place import Bench
from tests.tools.peers.place import Command


class Load(NamedTuple):
    """What is asked of a worker."""

    task: str
    """noop or anoop (sync and async, `record.ran(number)`), began or abegan (`record.began(number)`), touch (one read
    and one write by Django's ORM, then `record.ran`), nap (50 ms), carry (takes a text), fruit (returns 10 kB)."""
    processes: int = 1
    concurrency: int | None = None
    """Jobs at a time in each process; None: the system's best."""


class Suspension(NamedTuple):
    """How the jobs of a system are suspended: those of the task `sleeps` for days, those of `waits` for an event."""

    count_query: str
    """Counts the suspended jobs."""
    remove: Sequence[str]
    """Statements that remove them."""
    most: int
    """How many suspended jobs are measured: fewer where 100,000 would take minutes."""
    plain_jobs: int
    """How many jobs are drained beside them: so many that it takes seconds."""


class System(NamedTuple):
    """A queue, or a yardstick. Commands are run by the Python of its own environment, in a directory of their own."""

    name: str
    distribution: str
    """Whose version is told; "": this checkout's."""
    packages: Sequence[str]
    """Pinned: what was measured."""
    files: Mapping[str, str]
    """Its tasks, its settings, and `adapter.py`: see files/produce.py."""
    worker: Callable[[Load], Command]
    """The command of one worker; its processes are its own business."""
    unfinished: Callable[[Bench], int]
    """How many jobs its own books have not finished yet."""
    tasks: frozenset[str]
    """Of those that `Load` names: what it can run."""
    settings: str
    """Which of its settings were chosen, and how, for the reader."""
    prepare: Sequence[Command] = ()
    npm: Sequence[str] = ()
    """Packages of npm's that it needs; `packages` then have a Node.js."""
    broker: str = "postgresql"
    drain_jobs: int = 50_000
    """How many no-op jobs are drained: fewer where 50,000 would take minutes."""
    oldest_python: tuple[int, int] = (3, 11)
    path: Path | None = None
    """A checkout to import from."""
    runs: bool = True
    """False for a yardstick that only enqueues."""
    sweep: Sequence[int] = ()
    """Numbers of jobs at a time to try where the best is to be found for each load."""
    processes: Sequence[int] = (1,)
    """Numbers of processes to try with each of them."""
    ways: frozenset[str] = frozenset({"bulk", "single", "paced", "later"})
    """Of produce.py's: how it can enqueue."""
    waiting: str = ""
    """Counts the jobs that wait for jobs that they depend on; "" if the system has no such. It is run often."""
    suspension: Suspension | None = None
    """None: its jobs cannot sleep and wait for events."""
