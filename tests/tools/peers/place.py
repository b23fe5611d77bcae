"""Where a measurement happens: a directory, a broker, one environment, and the processes started there."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.tools.peers.job import JOURNAL

Command = Sequence[str]
Answer = TypeVar("Answer")
STARTING_SECONDS = 60.0
interrupted = threading.Event()
"""Set to end every measurement early, each cleaning up after itself."""


class Peer(NamedTuple):
    """A queue as its own quick start sets it up. Commands are run by the Python of its own environment."""

    name: str
    distribution: str
    packages: Sequence[str]  # pinned: what was measured
    files: Mapping[str, str]  # the project that its quick start has one write
    prepare: Sequence[Command]
    enqueue: Command
    worker: Command
    look: Callable[[Place], str]  # what the broker says of the job, in a line
    succeeded: str  # the word in that line which says that the job succeeded
    repair: str  # what an operator does about a job that does not come back
    broker: str = "postgresql"
    has_child: bool = False  # the job runs in a child of the process that was started
    takes_back: bool = False  # the lost job is run again within any sensible limit, so its late finish can be measured
    path: Path | None = None  # a checkout to import from, instead of an installed distribution


class Note(NamedTuple):
    """A line of the job's journal."""

    word: str  # "started" or "finished"
    pid: int
    at: float  # seconds of the epoch


class Place:
    """One measurement's own directory; every process that it starts is ended by `end`."""

    def __init__(self, directory: Path, python: Path, variables: Mapping[str, str], path: Path | None) -> None:
        self.directory = directory
        self.python = python
        search = os.pathsep.join(str(entry) for entry in (directory, path) if entry)
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        self.variables = inherited | {"PYTHONPATH": search, "DJANGO_SETTINGS_MODULE": "settings"} | dict(variables)
        self._workers: list[Worker] = []

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            target = self.directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def run(self, command: Command) -> str:
        """Run a command of the peer to its end; return what it wrote."""
        done = subprocess.run(
            [self.python, *command],
            env=self.variables,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=STARTING_SECONDS * 2,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, command: Command) -> Worker:
        """Start a worker in a session of its own, by which its whole family is known."""
        log = self.directory / f"worker-{len(self._workers) + 1}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [self.python, *command],
                env=self.variables,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._workers.append(Worker(process))
        return self._workers[-1]

    def end(self) -> None:
        for worker in self._workers:
            worker.kill()

    @property
    def journal(self) -> list[Note]:
        """What the runs of the job wrote down, in order."""
        path = self.directory / JOURNAL
        lines = path.read_text().splitlines() if path.exists() else []
        return [Note(word, int(pid), float(at)) for word, pid, at in (line.split() for line in lines)]

    def wait_for(self, word: str, seconds: float, *, but: Sequence[Note] = ()) -> Note | None:
        """The first note of that word which is not among `but`; None if there is none within that time."""
        return wait_until(lambda: next((n for n in self.journal if n.word == word and n not in but), None), seconds)

    def let_go(self, pid: int | None = None) -> None:
        """Let the run in that process end its job, or every run."""
        (self.directory / ("go" if pid is None else f"go-{pid}")).touch()


class Worker:
    """A worker and all the processes it has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def family(self) -> list[int]:
        """The living processes of its session."""
        return [pid for pid, state, session in processes() if session == self.pid and state != "Z"]

    def send(self, number: signal.Signals) -> None:
        """Signal the whole family."""
        for pid in self.family:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL the whole family, those born meanwhile too, as the end of a container does."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # at once; then whoever has left the group
        while self.family:
            self.send(signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()


def processes() -> Iterator[tuple[int, str, int]]:
    """Process id, state and session of every process of this machine."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                state, _parent, _group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                yield int(entry.name), state, int(session)


def wait_until(condition: Callable[[], Answer], seconds: float) -> Answer:
    """Wait until `condition()` is true, or the time is over; return what it returned last."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()) and time.monotonic() < deadline:
        if interrupted.wait(0.1):
            raise RuntimeError("interrupted")
    return answer


@contextmanager
def ending(place: Place) -> Iterator[Place]:
    try:
        yield place
    finally:
        place.end()
