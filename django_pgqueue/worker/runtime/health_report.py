"""Judge from shared memory whether a worker is alive and ready, and report it.

`judge()` is the only place that decides this. The health file, the notifications to systemd and the metrics port show
its answer; `django_pgqueue.health` reads it from the file. For a worker with several databases, `judge_all()` combines
the answers of its supervisors: such a worker is alive and ready if all of them are.

A worker is **alive** as long as waiting may help: its supervisor works, and so does each process, or the supervisor can
still replace it. A worker is **ready** if claims, completions and heartbeats move.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from django_pgqueue.settings.conf import get_settings

from .shared_memory import HealthMemory
from .worker_memory import WorkerMemory, lease_left_seconds

ROUND_SECONDS: Final = 300.0
"""How long one round of the supervisor may take. It may wait long for the database, and longer for a name server."""
SILENT_SECONDS: Final = 60.0
"""How long a process's main thread may be silent before the worker is not ready. C code may block it for that long, and
the receivers of `worker_process_started` for 30 s."""
LOST_SECONDS: Final = 900.0
"""How long it may be silent before the worker is not alive. The supervisor kills a silent process after 600 s."""
LOOP_SECONDS: Final = 5.0
"""How long an event loop of a process may be blocked. None of its coroutines continues meanwhile."""
COMPLETIONS_SECONDS: Final = 2.0
"""How long a process may be unable to write the results of its jobs."""
CLAIM_SECONDS: Final = 15.0
"""How much longer than its longest sleep an idle process may go without a claim that the database answers."""
LEASE_FRACTION: Final = 0.5
"""The part of a lease that must be left. A heartbeat is sent after every quarter."""
ENDED: Final = "ended"
"""The status of a supervisor that has ended while those of other databases still work."""
STATUSES: Final = (
    "stopping",
    "foreign database",
    "supervisor stuck",
    "process stuck",
    "event loop blocked",
    "completions stuck",
    "database away",
    "heartbeats late",
    "claims stuck",
    "waiting",
    "ok",
    ENDED,
)
"""Every status, the most serious problem first."""


class Judgement(NamedTuple):
    """The answer of `judge()`. `reasons` has one sentence for each problem."""

    is_alive: bool
    status: str
    reasons: tuple[str, ...]

    @property
    def is_ready(self) -> bool:
        """Whether the worker claims jobs and writes their results."""
        return self.status == "ok"


def judge(memory: WorkerMemory) -> Judgement:
    """Return whether the worker is alive, its status, and the reasons why it is not ready.

    If there are several problems, the status is that of the first. An outage explains late heartbeats and claims, so it
    comes before them. Completions that are stuck come before an outage, because the database has answered other
    statements since.
    """
    if memory.has_ended:
        return Judgement(is_alive=True, status=ENDED, reasons=())
    processes = memory.living()
    problems = [*_stuck(memory, processes), *_not_moving(memory, processes)]
    if memory.is_foreign:
        problems.insert(0, ("foreign database", "the database belongs to another installation"))
    if memory.stopping_since:
        problems.insert(0, ("stopping", "the worker received a signal to stop"))
    elif not any(process.ages_seconds["claim"] is not None for process in processes):
        problems.append(("waiting", "no process has claimed yet"))
    return Judgement(
        is_alive=not any(_silent_seconds(process) > LOST_SECONDS for process in processes) and not _is_hung(memory),
        status=problems[0][0] if problems else "ok",
        reasons=tuple(reason for _, reason in problems),
    )


def judge_all(memories: Mapping[str, WorkerMemory]) -> Judgement:
    """Judge a worker with several databases. The status is the most serious one of its databases.

    Args:
        memories: The shared memory of each supervisor, by the alias of its database.
    """
    judgements = {alias: judge(memory) for alias, memory in memories.items()}
    return Judgement(
        is_alive=all(judgement.is_alive for judgement in judgements.values()),
        status=min((judgement.status for judgement in judgements.values()), key=STATUSES.index),
        reasons=tuple(f"{alias}: {reason}" for alias, judgement in judgements.items() for reason in judgement.reasons),
    )


Problem = tuple[str, str]
"""A status and a sentence."""


def _stuck(memory: WorkerMemory, processes: list[HealthMemory]) -> Iterator[Problem]:
    """Yield the processes that no longer respond."""
    if _is_hung(memory):
        yield "supervisor stuck", f"the supervisor has been in one round for {_age(memory.round_finished_at):.0f} s"
    for process in processes:
        if (seconds := _silent_seconds(process)) > SILENT_SECONDS:
            yield "process stuck", f"process {process.pid} has not responded for {seconds:.0f} s"
        if process.loop_blocked_since and (seconds := _age(process.loop_blocked_since)) > LOOP_SECONDS:
            yield "event loop blocked", f"an event loop of process {process.pid} has been blocked for {seconds:.0f} s"


def _not_moving(memory: WorkerMemory, processes: list[HealthMemory]) -> Iterator[Problem]:
    """Yield what prevents completions, heartbeats and claims."""
    for process in processes:
        if _completions_are_stuck(process):
            seconds = process.completions_behind_seconds or 0.0
            yield "completions stuck", f"process {process.pid} has written no result for {seconds:.0f} s"
    outages = [process.outage_since for process in (memory.supervisor, *processes) if process.outage_since]
    if outages:
        yield "database away", f"statements have been failing for {_age(min(outages)):.0f} s"
    lease_seconds, claim_seconds = get_settings().LEASE, get_settings().POLL_INTERVAL + CLAIM_SECONDS
    for process in processes:
        if lease_left_seconds(process) < LEASE_FRACTION * lease_seconds:
            seconds = lease_seconds - lease_left_seconds(process)
            yield "heartbeats late", f"the leases of process {process.pid} were last extended {seconds:.0f} s ago"
        if (seconds := _unclaimed_seconds(process)) > claim_seconds:
            yield "claims stuck", f"process {process.pid} has free slots, and claimed nothing for {seconds:.0f} s"


def _is_hung(memory: WorkerMemory) -> bool:
    return _age(memory.round_finished_at) > ROUND_SECONDS


def _silent_seconds(process: HealthMemory) -> float:
    return _age(process.responded_at or process.started_at)


def _unclaimed_seconds(process: HealthMemory) -> float:
    """Return how long the process has had room for jobs while the database has answered no claim; 0 without room."""
    since, age_seconds = process.claims_expected_since, process.ages_seconds["claim"]
    if not since:
        return 0.0
    return _age(since) if age_seconds is None else min(_age(since), age_seconds)


def _completions_are_stuck(process: HealthMemory) -> bool:
    """Return whether a process cannot write results although the database has answered other statements since.

    If the database has answered nothing since, this is an outage, which has a status of its own.
    """
    behind_seconds = process.completions_behind_seconds
    if behind_seconds is None or behind_seconds < COMPLETIONS_SECONDS:
        return False
    rescue_age_seconds = process.ages_seconds["rescue"]
    heartbeat_age_seconds = get_settings().LEASE - lease_left_seconds(process)
    answer_age_seconds = min(heartbeat_age_seconds, float("inf") if rescue_age_seconds is None else rescue_age_seconds)
    return answer_age_seconds < behind_seconds - 1.0


def _age(since: float) -> float:
    return time.monotonic() - since


class HealthReport:
    """The state of one worker as its health file and its metrics port report it.

    Args:
        memory: The shared memory of its supervisor. A worker with several databases has one supervisor for each: then
            this is a mapping from the alias of the database.
        release: The name of the project's release, or "".
    """

    def __init__(self, memory: WorkerMemory | Mapping[str, WorkerMemory], release: str = "") -> None:
        self.release = release
        self.by_database: Mapping[str, WorkerMemory] = {} if isinstance(memory, WorkerMemory) else memory
        """The memory of each supervisor of a worker with several databases; empty for a worker with one."""
        self.memory = memory if isinstance(memory, WorkerMemory) else next(iter(memory.values()))
        """The memory of the only or the first supervisor. The metrics process shows there that it works."""
        self.main_pid = os.getpid()
        self._status = self._since = ""

    def judge(self) -> Judgement:
        """Judge the worker, and note when its status changed."""
        judgement = judge_all(self.by_database) if self.by_database else judge(self.memory)
        if judgement.status != self._status:
            self._status, self._since = judgement.status, datetime.now(UTC).isoformat(timespec="seconds")
        return judgement

    def living(self) -> list[HealthMemory]:
        """Return the health of the worker processes that live."""
        return [process for memory in self._memories() for process in memory.living()]

    def as_dict(self) -> dict[str, Any]:
        """Return the state as values of JSON."""
        judgement = self.judge()
        about = {
            "status": judgement.status,
            "since": self._since,
            "alive": judgement.is_alive,
            "ready": judgement.is_ready,
            "reasons": list(judgement.reasons),
            "pid": self.main_pid,
            "errors": sum(memory.supervisor.errors for memory in self._memories()),
            "processes": [_process_report(process) for process in self.living()],
        }
        if self.by_database:
            about["databases"] = {alias: _database_report(memory) for alias, memory in self.by_database.items()}
        return about

    def _memories(self) -> list[WorkerMemory]:
        return [*self.by_database.values()] or [self.memory]


def _database_report(memory: WorkerMemory) -> dict[str, Any]:
    """Return the state of the supervisor of one of several databases."""
    judgement = judge(memory)
    return {
        "status": judgement.status,
        "alive": judgement.is_alive,
        "ready": judgement.is_ready,
        "reasons": list(judgement.reasons),
        "pid": memory.supervisor.pid,
        "errors": memory.supervisor.errors,
        "processes": [process.pid for process in memory.living()],
    }


def _process_report(process: HealthMemory) -> dict[str, Any]:
    ages = process.ages_seconds.items()
    behind_seconds = process.completions_behind_seconds
    return {
        "pid": process.pid,
        "worker_id": process.worker_id,
        "lease_left_seconds": round(lease_left_seconds(process), 1),
        "running": process.running,
        "prefetched": process.prefetched,
        **{f"{statement}_age_seconds": None if seconds is None else round(seconds, 1) for statement, seconds in ages},
        "completions_behind_seconds": None if behind_seconds is None else round(behind_seconds, 1),
        "errors": process.errors,
    }
