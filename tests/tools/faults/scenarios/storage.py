"""Full disks and a server whose clock jumps (F36, F37, F45), each with a server of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from example_project.embedded.server import service_account
from tests.process.server import Server
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run
from tests.tools.faults.suite import SETTINGS

from . import counted
from .database import assert_only_counted, enqueue_load
from .machine import with_clock


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """Yield a file system of a few megabytes that belongs to the server's account."""
    with tempfile.TemporaryDirectory(prefix="pgqd", dir="/tmp") as home:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", home], check=True)
        try:
            account = service_account()
            if account:
                os.chown(home, account.pw_uid, account.pw_gid)
            yield Path(home)
        finally:
            subprocess.run(["umount", "-l", home], check=True)


@contextmanager
def own_server(settings: Mapping[str, str] = SETTINGS) -> Iterator[Server]:
    """Yield a server for one scenario, in a directory with a short path."""
    with tempfile.TemporaryDirectory(prefix="pgqo", dir="/tmp") as home:
        Path(home).chmod(0o755)
        server = Server(Path(home), settings=settings)
        try:
            yield server
        finally:
            server.cluster.stop("immediate")


def as_owner(path: Path) -> None:
    """Change the owner of a path to the account that runs the server."""
    account = service_account()
    if account:
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


@fault(
    "F36",
    "the disk of the tables is full",
    invariant="an enqueue fails as a whole, with an error in its caller's transaction; workers back off, and continue"
    " when there is space",
    expected="0 partial enqueues; all jobs end afterwards",
    needs=("tmpfs",),
    exclusive=True,
)
def disk_full(run: Run) -> str:
    disk, server = run.enter(small_disk("96M")), run.enter(own_server())
    run.move_to(server)
    with server.connect("template1") as session:
        session.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        session.execute("CREATE DATABASE full_disk TEMPLATE postgres TABLESPACE small")
    run.database, run.settings = "full_disk", server.settings_for("full_disk")
    worker = run.worker(LEASE=30.0)
    enqueue_load(run, seconds=0.2)
    run.sql("CREATE TABLE ballast (filling text)")
    run.sql("ALTER TABLE ballast ALTER filling SET STORAGE PLAIN")
    with contextlib.suppress(psycopg.errors.DiskFull):
        while True:
            run.sql("INSERT INTO ballast SELECT repeat('x', 7000) FROM generate_series(1, 100)")
    with contextlib.suppress(psycopg.errors.DiskFull):
        while True:
            run.sql("INSERT INTO ballast VALUES (repeat('x', 7000))")
    producer = run.producer("--seconds", "5", "--task", "plain", "--per-second", "400")
    producer.wait(60)
    answers = [one["answer"] for one in run.journal("enqueue-returned")]
    refused = answers.count("rolled back")
    run.sql("DROP TABLE ballast")
    took = run.wait_until_done(60)
    assert refused, "the disk was never full"
    lines = worker.said.count("No space left on device")
    return f"{refused} enqueues refused, each as a whole; log lines of the worker: {lines}; all done {took:.1f} s later"


@fault(
    "F37",
    "the disk of the write-ahead log is full: the server panics",
    invariant="jobs are interrupted in time and released; there is no mass rescue when the server is back",
    expected="0 charged; all done once there is space and the server is started",
    needs=("tmpfs",),
    exclusive=True,
)
def log_disk_full(run: Run) -> str:
    sizes = {"min_wal_size": "32MB", "max_wal_size": "48MB", "wal_keep_size": "0"}
    disk, server = run.enter(small_disk("100M")), run.enter(own_server({**SETTINGS, **sizes}))
    _move_log(server, disk)
    run.move_to(server)
    jobs = enqueue_load(run, seconds=0.1)
    worker = run.worker(LEASE=8.0)
    run.wait_for("start", 4)
    filler = disk / "filler"
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while file.write(bytes(2**20)):
            file.flush()
    with contextlib.suppress(psycopg.Error):
        run.sql("CREATE TABLE ballast AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)")
    run.wait_until(lambda: not server.cluster.is_running(), 30, "the server to panic")
    filler.unlink()
    time.sleep(1)
    server.cluster.start()
    took = run.wait_until_done(60)
    assert_only_counted(run, jobs)
    assert worker.process.poll() is None
    return f"the server panicked; {jobs} of {jobs} jobs, 0 charged; all done {took:.1f} s after it was back"


def _move_log(server: Server, disk: Path) -> None:
    server.cluster.stop("fast")
    log = server.cluster.data / "pg_wal"
    shutil.move(log, disk / "pg_wal")
    log.symlink_to(disk / "pg_wal")
    for path in (log, *(disk / "pg_wal").rglob("*"), disk / "pg_wal"):
        as_owner(path)
    server.cluster.start()


@fault(
    "F45",
    "the clock of the database jumps an hour ahead: every lease ends at once",
    invariant="a wrongly rescued job runs again, and its earlier completion does not count",
    expected="0 wrong effects; no job is lost; the suite counts wrong charges",
    needs=("faketime",),
    exclusive=True,
)
def database_clock_ahead(run: Run) -> str:
    server, stamp = run.enter(server_with_clock())
    run.move_to(server)
    jobs = enqueue_load(run, seconds=0.3)
    run.worker(LEASE=4.0)
    run.worker(LEASE=4.0)
    run.wait_for("start", 16)
    stamp.write_text("+3600")
    run.wait_until_done(90)
    charged = run.scalar("SELECT coalesce(sum(crashes), 0) FROM pgqueue_job")
    assert run.states() == {"succeeded": jobs}, run.states()
    return f"{jobs} of {jobs} jobs; {charged} charged with a crash that did not happen"


@fault(
    "F45b",
    "the clock of the database jumps an hour back",
    invariant="running jobs end once; nothing is lost, although jobs enqueued before are due in an hour",
    expected="running jobs end; jobs that are enqueued afterwards run",
    needs=("faketime",),
    exclusive=True,
)
def database_clock_back(run: Run) -> str:
    go = run.where / "go"
    server, stamp = run.enter(server_with_clock())
    run.move_to(server)
    running = run.enqueue("atomic", 4, until=str(go))
    run.worker(LEASE=4.0)
    run.wait_for("start", 4)
    before = run.enqueue("plain", 10)
    stamp.write_text("-3600")
    later = run.enqueue("plain", 50)
    time.sleep(3)
    go.touch()
    state = "SELECT state, count(*) FROM pgqueue_job WHERE id = ANY(%s) GROUP BY 1"
    run.wait_until(lambda: run.sql(state, [[*running, *later]]) == [("succeeded", 54)], 30)
    held = run.sql(state, [before])
    stamp.write_text("+0")
    run.wait_until_done()
    assert not run.scalar("SELECT sum(crashes) FROM pgqueue_job")
    return (
        "4 running and 50 later jobs ended; 10 earlier jobs waited until the clock was right"
        f" ({counted(dict(held))}); 0 charged"
    )


@contextmanager
def server_with_clock() -> Iterator[tuple[Server, Path]]:
    """Yield a server for one scenario, and the file whose text is the offset of its clock."""
    with tempfile.TemporaryDirectory(prefix="pgqc", dir="/tmp") as home:
        Path(home).chmod(0o755)
        stamp = Path(home) / "time"
        stamp.write_text("+0")
        with own_server() as server:
            server.cluster.stop("fast")
            before = dict(os.environ)
            os.environ.update(with_clock(FAKETIME_TIMESTAMP_FILE=str(stamp)))  # read when the server starts
            try:
                server.cluster.start()
            finally:
                os.environ.clear()
                os.environ.update(before)
            yield server, stamp
