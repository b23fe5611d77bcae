"""Five hosts with a worker each, an application, a primary and a synchronous standby: each on a machine of its own.

The scenarios of several hosts and their soak share this. It starts them, keeps jobs running on a chosen host, and
measures how long the others need until these jobs run again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from django_pgqueue.lifecycle import schedules
from tests.deploys import trees
from tests.process.harness import Worker
from tests.tools.faults import journal, soak_flows, ticks
from tests.tools.faults.machines import Machine, own_router
from tests.tools.faults.remote_servers import RemotePair, remote_pair
from tests.tools.faults.run import Run
from tests.tools.faults.soak import DRAIN_SECONDS, is_unblocked

HOSTS: Final = 5
PROCESSES: Final = 4
CONCURRENCY: Final = 3
LEASE_SECONDS: Final = 6.0
JOBS_PER_SECOND: Final = 15.0
CALM_SECONDS: Final = 5.0
"""For how long the rates before and after a fault are measured."""
OBEY_SECONDS: Final = 12.0
"""How old a claim's knowledge of pauses may be: a host that is cut off may hold a claim back for so long."""
PASSED_OVER_SECONDS: Final = 25.0
"""For how long a limit key may be passed over: a host that was cut off keeps its locks of keys for 5 s, and a failover
ends all claims for longer."""
NOTICES: Final = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}
"""Connection options by which the application notices a primary that is cut off. The worker has its own."""
HOLDERS: Final = 60
"""How many jobs are enqueued at most until enough of them run on a host."""

ON_HOST: Final = """
SELECT execution.job_id FROM pgqueue_execution AS execution JOIN pgqueue_worker AS worker
ON worker.id = execution.worker_id JOIN fault_effect AS effect ON effect.execution_id = execution.id
WHERE execution.outcome IS NULL AND worker.supervisor_pid = %s AND execution.job_id = ANY (%s)
"""
OTHERS_ON_HOST: Final = """
SELECT count(*) FROM pgqueue_execution AS execution JOIN pgqueue_worker AS worker ON worker.id = execution.worker_id
WHERE execution.outcome IS NULL AND worker.supervisor_pid = %s AND execution.job_id <> ALL (%s)
"""
DONE: Final = """
SELECT count(*) FROM fault_event WHERE place = 'job' AND new->>'state' = 'succeeded' AND old->>'state' = 'running'
AND at >= to_timestamp(%s) AND at < to_timestamp(%s)
"""
FIRST_DONE: Final = """
SELECT extract(epoch FROM min(at))::float8 FROM fault_event
WHERE place = 'job' AND new->>'state' = 'succeeded' AND old->>'state' = 'running' AND at >= to_timestamp(%s)
"""
ENDS: Final = """
SELECT count(*) FROM pgqueue_execution AS execution JOIN pgqueue_worker AS worker ON worker.id = execution.worker_id
WHERE worker.supervisor_pid = %s AND execution.outcome = 'succeeded' AND execution.finished_at >= to_timestamp(%s)
"""


class Starts:
    """The begins of bodies, read from the journals as they grow."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.by_job: dict[int, list[float]] = {}
        self._read: dict[Path, int] = {}

    def of(self, job: int) -> list[float]:
        """Return when the bodies of a job began, in seconds of the epoch."""
        for path in self.where.glob(f"*{journal.SUFFIX}"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rpartition(b"\n")[0] + b"\n" if b"\n" in text else b""
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                if b'"event": "start"' in line:
                    record = json.loads(line)
                    self.by_job.setdefault(record["job"], []).append(record["wall"])
        return sorted(self.by_job.get(job, []))


class Host:
    """A machine with one worker."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.worker: Worker | None = None
        self.tree: Path | None = None
        """The source tree of the worker's release; None: this checkout."""

    @property
    def running(self) -> Worker:
        """The worker."""
        assert self.worker is not None, f"no worker was started on {self.machine.label}"
        return self.worker


class Fleet:
    """All machines of a run."""

    def __init__(self, run: Run, lease_seconds: float = LEASE_SECONDS) -> None:
        self.run = run
        self.lease_seconds = lease_seconds
        run.rules = run.rules._replace(obey_seconds=OBEY_SECONDS, passed_over_seconds=PASSED_OVER_SECONDS)
        self.router = run.enter(own_router())
        self.pair: RemotePair = run.enter(remote_pair(run, self.router))
        self.application = self.router.add("app")
        self.hosts = [Host(self.router.add(f"host{number}")) for number in range(1, HOSTS + 1)]
        self.starts = Starts(run.where)
        self.schedule = ticks.add(run, "each second", "every 1 second", missed="all")
        self._gates = 0
        for host in self.hosts:
            self.start(host, wait=False)
        for host in self.hosts:
            self.wait_until_ready(host)
        self.produce()
        time.sleep(2 * CALM_SECONDS / 5)
        self.calm_since = time.time()

    # ---------------------------------------------------------------- processes

    def start(self, host: Host, *, wait: bool = True) -> Worker:
        """Start a worker on a host, with the code of the host's release."""
        host.worker = self.run.worker(
            *("--processes", str(PROCESSES), "--concurrency", str(CONCURRENCY)),
            prefix=host.machine.prefix,
            variables=trees.path_to(host.tree) if host.tree else {},
            ready=False,
            LEASE=self.lease_seconds,
            POLL_INTERVAL=2.0,
        )
        if wait:
            self.wait_until_ready(host)
        return host.worker

    def wait_until_ready(self, host: Host) -> None:
        """Wait until all processes of a host's worker are connected."""
        worker = host.running
        worker.wait_until(lambda: worker.said.count(" is ready (process") >= PROCESSES, 60)

    def produce(self, tree: Path | None = None) -> None:
        """Start an application that enqueues a mix of jobs at a steady rate; end the earlier one."""
        self.stop_producing()
        settings = self.run.settings | {"OPTIONS": self.run.settings["OPTIONS"] | NOTICES}
        self.run.producer(
            *("--per-second", str(JOBS_PER_SECOND), "--seed", str(self.run.random.randrange(10**6))),
            prefix=self.application.prefix,
            variables=trees.path_to(tree) if tree else {},
            database=settings,
        )

    def assert_producing(self) -> None:
        """Fail if the application has ended, with what it printed."""
        application = self.run.processes[-1]
        assert application.poll() is None, application.communicate()[0]

    def stop_producing(self) -> None:
        """Kill the application, which may lose the answer of its last enqueue."""
        for process in self.run.processes:
            process.kill()

    # ---------------------------------------------------------------- jobs that run on a host

    def occupy(self, *hosts: Host, each: int = 4) -> tuple[Path, dict[Host, list[int]]]:
        """Enqueue jobs one by one until `each` of them run on each host. They run until the returned file exists."""
        self._gates += 1
        gate = self.run.where / f"gate-{self._gates}"
        jobs: list[int] = []
        found: dict[Host, list[int]] = {}
        while len(jobs) < HOLDERS:
            [job] = self.run.enqueue("plain", until=str(gate), priority=-1)
            self._wait_until_running(job)
            jobs.append(job)
            found = {host: self._on(host, jobs) for host in hosts}
            if all(len(there) >= each for there in found.values()):
                return gate, found
        raise AssertionError(f"of {len(jobs)} jobs, too few run on a host: {found}")

    def _wait_until_running(self, job: int) -> None:
        effects = "SELECT count(*) FROM fault_effect WHERE job_id = %s"
        self.run.wait_until(lambda: self.run.scalar(effects, [job]), what="a job to begin")

    def _on(self, host: Host, jobs: Sequence[int]) -> list[int]:
        return [job for [job] in self.run.sql(ON_HOST, [host.running.process.pid, [*jobs]])]

    def warm_up(self) -> None:
        """Have every slot run a job. The work after the first job of a slot needs the database."""
        jobs = self.run.enqueue("plain", 2 * HOSTS * PROCESSES * CONCURRENCY, seconds=0.3)
        ended = "SELECT count(*) FROM pgqueue_job WHERE id = ANY (%s) AND state = 'succeeded'"
        self.run.wait_until(lambda: self.run.scalar(ended, [jobs]) == len(jobs), what="the first jobs of all slots")

    def wait_until_only(self, host: Host, jobs: Sequence[int]) -> None:
        """Wait for a moment at which a host has claimed nothing but these jobs."""
        pid = host.running.process.pid
        self.run.wait_until(
            lambda: not self.run.scalar(OTHERS_ON_HOST, [pid, [*jobs]]), what="a moment without other jobs"
        )

    def run_again(self, jobs: Sequence[int], since: float, within: float) -> list[float]:
        """Wait until a second body of each job has begun; return after how many seconds, in order."""

        def again() -> list[float]:
            return [starts[1] - since for job in jobs if len(starts := self.starts.of(job)) > 1]

        self.run.wait_until(lambda: len(again()) == len(jobs), within, f"{len(jobs)} lost jobs to run again")
        return sorted(again())

    def wait_until_works(self, host: Host, since: float, within: float = 60.0) -> float:
        """Wait until a job that the host's worker has run succeeds; return how many seconds after `since`."""
        pid = host.running.process.pid
        self.run.wait_until(
            lambda: self.run.scalar(ENDS, [pid, since]), within, f"{host.machine.label} to complete a job"
        )
        return time.time() - since

    # ---------------------------------------------------------------- the end

    def finish(self) -> str:
        """Enqueue nothing more, and wait until every job has ended; return what became of all of them."""
        run = self.run
        self.stop_producing()
        assert schedules.pause_schedule(run.connection, self.schedule)
        run.wait_until(lambda: is_unblocked(run), DRAIN_SECONDS, "blocked keys to go on")
        run.wait_until(lambda: soak_flows.are_over(run), DRAIN_SECONDS, "everything to end")
        run.wait_until_done()
        lost = self.lost()
        assert not lost, f"{len(lost)} acknowledged enqueues are lost"
        jobs = run.scalar("SELECT count(*) FROM pgqueue_job")
        outcomes = ", ".join(f"{number} {name}" for name, number in run.outcomes().items())
        return f"{jobs} jobs, 0 lost; executions: {outcomes}"

    def lost(self) -> set[str]:
        """Return the tags of the jobs whose enqueue was acknowledged, and that no history knows."""
        answered = self.run.journal("enqueue-returned", answer="committed")
        known = {tag for [tag] in self.run.sql("SELECT tag FROM fault_event WHERE place = 'job' AND tag IS NOT NULL")}
        return {record["tag"] for record in answered} - known

    # ---------------------------------------------------------------- figures

    def rate(self, begin: float, end: float) -> float:
        """Return how many jobs succeeded per second between two times of the epoch."""
        return int(self.run.scalar(DONE, [begin, end])) / max(end - begin, 0.001)

    def calm(self) -> float:
        """Let the fleet work undisturbed for a while; return the jobs per second."""
        self.assert_producing()
        began = time.time()
        time.sleep(CALM_SECONDS)
        return self.rate(began, time.time())

    def first_done(self, since: float, within: float = 60.0) -> float:
        """Wait for the first completion after a time of the epoch; return after how many seconds it came."""
        self.run.wait_until(lambda: self.run.scalar(FIRST_DONE, [since]), within, "the first completion")
        return float(self.run.scalar(FIRST_DONE, [since])) - since
