"""Count from outside of the program: its system calls with strace, and the server's instructions with callgrind."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from example_project.embedded.server import service_account
from tests.tools.benchmarks.counts.figures import Figures
from tests.tools.benchmarks.counts.private_server import NotCounted, Program, connect, private_server

MARK: Final = re.compile(r'"/jobcounts/(\w+) ?(\w*)"')
CALL: Final = re.compile(r"^(?:\d+ +)?(\w+)\(")
OF_THE_METER: Final = frozenset({"clock_nanosleep", "nanosleep"})
"""The calls by which the counted program waits for its own threads."""
BATCHES: Final = (7, 17)
"""The server's instructions are those of the larger number of batches less those of the smaller one. By the tenth
batch, all statements are prepared."""
START_SECONDS: Final = 240.0
PROFILE_SECONDS: Final = 120.0


def system_calls(program: Program, forms: Sequence[str]) -> dict[str, Figures]:
    """Return the system calls of the process for each job. Waits of threads for each other depend on the load."""
    if not shutil.which("strace"):
        raise NotCounted("system calls, because strace is not installed")
    with tempfile.NamedTemporaryFile(prefix="strace") as log:
        under = ["strace", "-f", "-qq", "-e", "signal=none", "-o", log.name]
        found = program.count(forms, alone=True, under=under)
        counts = _calls_between_marks(Path(log.name))
    return {form: {"system_calls": counts[form].total() / found.jobs} for form in forms}


def _calls_between_marks(log: Path) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    form = None
    for line in log.read_text(errors="replace").splitlines():
        if mark := MARK.search(line):
            form = mark[2] or None
            if form is not None:
                counts[form] = Counter()
        elif form is not None and (call := CALL.match(line)) and call[1] not in OF_THE_METER:
            counts[form][call[1]] += 1
    return counts


def server_instructions(python: str, checkout: Path, forms: Sequence[str]) -> dict[str, Figures]:
    """Return the instructions that the sessions of the counted program execute for each job. It takes minutes."""
    if not shutil.which("valgrind"):
        raise NotCounted("instructions of the server, because valgrind is not installed")
    with private_server() as cluster:
        program = Program(cluster, python, checkout.resolve())
        program.make_tables()
        cluster.stop()
        with _under_callgrind(program) as profiles:
            return {form: {"server_instructions": _instructions(program, form, profiles)} for form in forms}


def _instructions(program: Program, form: str, profiles: Path) -> float:
    totals, jobs = [], []
    for batches in BATCHES:
        found = program.count([form], batches=batches, alone=True)
        totals.append(sum(_total(profiles / str(pid)) for pid in found.sessions))
        jobs.append(found.jobs)
    return (totals[1] - totals[0]) / (jobs[1] - jobs[0])


def _total(profile: Path) -> int:
    """Return what a session has executed. Its profile is written when it ends."""
    deadline = time.monotonic() + PROFILE_SECONDS
    while time.monotonic() < deadline:
        text = profile.read_text() if profile.exists() else ""
        if found := re.search(r"^totals: (\d+)", text, re.MULTILINE):
            return int(found[1])
        time.sleep(0.1)
    raise RuntimeError(f"valgrind has written no profile {profile}")


@contextmanager
def _under_callgrind(program: Program) -> Iterator[Path]:
    """Run the server of a stopped cluster under callgrind. Yield the directory with the profile of each process."""
    cluster, account = program.cluster, service_account()
    profiles = cluster.home / "profiles"
    profiles.mkdir(mode=0o777)
    profiles.chmod(0o777)
    options = [part for name, value in cluster.settings.items() for part in ("-c", f"{name}={value}")]
    callgrind = ["valgrind", "--tool=callgrind", "--trace-children=yes", f"--callgrind-out-file={profiles}/%p"]
    process = subprocess.Popen(
        [*callgrind, str(cluster.bin_dir / "postgres"), "-D", str(cluster.data), *options],
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
    )
    try:
        _wait_for(program)
        yield profiles
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PROFILE_SECONDS)


def _wait_for(program: Program) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            connect(program.cluster).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
