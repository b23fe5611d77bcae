"""What becomes of a job whose worker is killed: `python -m tests.tools.peers.kill [--only NAME,...] [--json FILE]`.

Each system runs in its default configuration, in an environment and with a broker of its own. Three faults:

- killed: the worker, with all its processes, by SIGKILL while it holds the job; a new worker is started at once.
- child killed: only the process that runs the job, where that is a child; nothing is started.
- late finish: the worker is stopped by SIGSTOP until a second one has taken the job, then goes on and finishes it,
  while the second still runs it. Measured where jobs are taken back.

Prints a table in Markdown. Not part of CI: it takes as long as the limit says, and downloads the peers.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psycopg

from tests.tools.peers import brokers, job
from tests.tools.peers.environment import check_python, default_work, environment, version
from tests.tools.peers.place import STARTING_SECONDS, Note, Peer, Place, ending, interrupted, wait_until
from tests.tools.peers.systems import PEERS

SETTLING_SECONDS = 15.0
HEADS = ("system", "version", "fault", "what happened", "after", "state at the end", "to repair")


class Finding(NamedTuple):
    """What one fault did to one system's job."""

    system: str
    version: str
    fault: str
    happened: str
    after: str  # seconds from the fault to the start of the next run
    state: str
    repair: str


class Measured(NamedTuple):
    happened: str
    again_seconds: float | None
    state: str


Measurement = Callable[[Peer, Place, float], Measured]


def killed(peer: Peer, place: Place, limit: float) -> Measured:
    worker = place.start(peer.worker)
    first = started(place)
    worker.kill()
    at = time.time()
    place.start(peer.worker)
    return outcome(peer, place, limit, first, at)


def child_killed(peer: Peer, place: Place, limit: float) -> Measured:
    worker = place.start(peer.worker)
    first = started(place)
    if first.pid == worker.pid:
        raise RuntimeError(f"{peer.name} runs the job in the process that was started, which has no child")
    os.kill(first.pid, signal.SIGKILL)
    return outcome(peer, place, limit, first, time.time())


def late_finish(peer: Peer, place: Place, limit: float) -> Measured:
    slow = place.start(peer.worker)
    first = started(place)
    place.start(peer.worker)
    slow.send(signal.SIGSTOP)
    at = time.time()
    second = place.wait_for("started", limit, but=[first])
    if second is None:
        return Measured(f"not taken back within {limit:.0f} s", None, peer.look(place))
    place.let_go(first.pid)
    slow.send(signal.SIGCONT)
    finished = place.wait_for("finished", SETTLING_SECONDS)
    interrupted.wait(SETTLING_SECONDS)  # for what it buffers, or tries again
    between = peer.look(place)
    place.let_go()
    place.wait_for("finished", SETTLING_SECONDS, but=[finished] if finished else [])
    wait_until(lambda: peer.succeeded in peer.look(place), SETTLING_SECONDS)
    what = "the late finish" if finished else "the first run was ended before it could finish; that"
    verdict = "counted: the job had succeeded" if peer.succeeded in between else "did not count: the job was not done"
    text = f"{what} {verdict} while the second run went on ({between})"
    return Measured(text, second.at - at, peer.look(place))


def started(place: Place) -> Note:
    """Wait for the first run."""
    note = place.wait_for("started", STARTING_SECONDS)
    if note is None:
        raise RuntimeError(f"no run has begun within {STARTING_SECONDS:.0f} s: see {place.directory}")
    return note


def outcome(peer: Peer, place: Place, limit: float, first: Note, at: float) -> Measured:
    """Wait for a second run, let it end, and look."""
    second = place.wait_for("started", limit, but=[first])
    if second is None:
        return Measured(f"not run again within {limit:.0f} s", None, peer.look(place))
    place.let_go()
    wait_until(lambda: peer.succeeded in peer.look(place), SETTLING_SECONDS)
    return Measured("run again by itself", second.at - at, peer.look(place))


def faults(peer: Peer) -> Iterator[tuple[str, Measurement]]:
    yield "killed", killed
    if peer.has_child:
        yield "child killed", child_killed
    if peer.takes_back:
        yield "late finish", late_finish


class Runner:
    """Measures in directories below `top`, with databases on one server."""

    def __init__(self, top: Path, server: dict[str, str], limit: float) -> None:
        self.top, self.server, self.limit = top, server, limit

    def measure(self, peer: Peer, python: Path, fault: str, measurement: Measurement) -> Finding:
        """One fault to one system; what goes wrong with the measurement itself is told in its place."""
        try:
            measured = self._measured(peer, python, fault, measurement)
        except (RuntimeError, OSError, subprocess.SubprocessError, psycopg.Error) as error:
            measured = Measured(f"could not be measured: {error}", None, "")
        say(f"{peer.name}, {fault}: {measured}")
        again = measured.again_seconds
        after, repair = ("", peer.repair) if again is None else (f"{again:.0f} s", "nothing")
        return Finding(peer.name, version(python, peer), fault, measured.happened, after, measured.state, repair)

    def _measured(self, peer: Peer, python: Path, fault: str, measurement: Measurement) -> Measured:
        name = f"{peer.name}-{fault}".replace(" ", "-")
        directory = self.top / name
        directory.mkdir()
        with ExitStack() as stack:
            if peer.broker == "redis":
                variables = stack.enter_context(brokers.redis(directory))
            else:
                variables = brokers.make_database(self.server, name)
            place = stack.enter_context(ending(Place(directory, python, variables, peer.path)))
            place.write({"job.py": Path(job.__file__).read_text(), **peer.files})
            for command in (*peer.prepare, peer.enqueue):
                place.run(command)
            return measurement(peer, place, self.limit)


def say(text: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n")


def machine(server: dict[str, str], python: Path) -> str:
    """What was measured on, in a line."""
    parts = [
        f"{datetime.now(UTC):%Y-%m-%d}",
        f"{os.cpu_count()} cores",
        platform.platform(terse=True),
        brokers.postgresql_version(server),
        brokers.redis_version() if shutil.which("redis-server") else "no Redis",
        subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip(),
    ]
    return ", ".join(parts)


def table(findings: Sequence[Finding]) -> str:
    rows = [HEADS, tuple("---" for _ in HEADS), *findings]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"systems, separated by commas, of {', '.join(PEERS)}")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds to wait for a second run (600)")
    parser.add_argument("--json", type=Path, help="write the findings there too")
    parser.add_argument("--work", type=Path, default=default_work(), help="keeps environments and logs (%(default)s)")
    parser.add_argument("--python", default=sys.executable, help="makes the environments; 3.12 or later")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(PEERS)
    if unknown := set(names) - set(PEERS):
        parser.error(f"no such system: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    check_python(options.python)
    peers = [PEERS[name] for name in names]
    pythons = {peer.name: environment(options.work, options.python, peer) for peer in peers}
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    top = Path(tempfile.mkdtemp(prefix="run-", dir=options.work))
    with brokers.postgresql() as server:
        runner = Runner(top, server, options.limit)
        cases = [(peer, pythons[peer.name], *case) for peer in peers for case in faults(peer)]
        with ThreadPoolExecutor(len(cases)) as pool:  # they sleep
            findings = list(pool.map(lambda case: runner.measure(*case), cases))
        on = machine(server, next(iter(pythons.values())))
    text = f"{on}\n\n{table(findings)}"
    sys.stdout.write(f"{text}\n\nLogs: {top}\n")
    if options.json:
        content = {"machine": on, "findings": [finding._asdict() for finding in findings]}
        options.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
