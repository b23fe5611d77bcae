"""Read the stored calls of jobs, schedules and callbacks in batches, and compare them with this process's tasks.

`manage.py pgqueue check-deploy` calls it, and prints the `Findings`. It only reads, and each batch is a statement of
its own, so it holds neither a lock nor an old snapshot.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django_pgqueue.db.statements import Connection
from django_pgqueue.encoding.serialization import decode_arguments
from django_pgqueue.lifecycle import claims, stored_calls
from django_pgqueue.lifecycle.execute import savepoint
from django_pgqueue.lifecycle.refused_rows import FAILURES, may_divide
from django_pgqueue.lifecycle.stored_calls import StoredShape
from django_pgqueue.lifecycle.types import Lane
from django_pgqueue.schedules import declarations
from django_pgqueue.stats.limits.lanes import limited_lanes
from django_pgqueue.tasks import registry

from .call_shapes import HAVE, CallProblem, call_problems, unknown_task, value_problem

KINDS: Final = (
    *("due", "scheduled", "retrying", "waiting", "running", "dead"),
    *("schedule", "paused schedule", "undeclared schedule"),
    *("callback", "compensation"),
)
"""The kinds of stored calls: jobs in one of six states, schedules, callbacks of batches, compensations of steps."""
HARMLESS: Final = frozenset({"dead", "paused schedule", "undeclared schedule"})
"""Calls that run only if somebody asks for it, or that stop by themselves: their problems are warnings."""
OWNERS: Final = {kind: "schedule" if kind.endswith("schedule") else "job" for kind in KINDS} | {"callback": "batch"}
"""The owner of the id of an example, by kind."""
PLURALS: Final = {"job": "jobs", "schedule": "schedules", "batch": "batches"}
BATCH: Final = 1000
"""Jobs whose shapes one statement reads."""
READ_AT_ONCE: Final = 100
"""Jobs whose arguments Python reads at once."""
Shape = tuple[str, int, tuple[str, ...]]
"""The name of a task, the number of positional arguments, the names of the others."""


@dataclass(slots=True)
class CallFinding:
    """One problem of the calls of one task.

    `stored` fills the collection, and the command prints it. It does no I/O.
    """

    task_name: str
    problem: CallProblem
    is_warning: bool
    owner: str
    """The owner of the calls: "job", "schedule" or "batch"."""
    example: int
    """The lowest id of an owner that is known to have the problem."""
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Number of jobs, schedules or callbacks that have the problem."""
        return self.kinds.total()

    @property
    def noun(self) -> str:
        """The word for the jobs, schedules or callbacks that it counts."""
        if self.kinds.keys() == {"compensation"}:
            noun = "compensation"
        elif self.owner == "job":
            noun = "dead job" if self.is_warning else "job"
        else:
            [kind] = self.kinds if len(self.kinds) == 1 else [self.owner]
            noun = kind if self.is_warning or self.owner == "batch" else self.owner
        return noun if self.count == 1 else f"{noun}s"

    def __str__(self) -> str:
        verb = self.problem.verb[self.count > 1]
        subject = f"{self.count:,} {self.noun} of {registry.in_words(self.task_name)}"
        example = f"{self.owner} {self.example}"
        place = "tried on" if self.problem.code == "unreadable_value" else "for example"
        return f"{subject} {verb} {self.problem.rest} ({place} {example})"

    def as_json(self) -> dict[str, Any]:
        """Return the finding with stable keys."""
        return {
            "level": "warning" if self.is_warning else "error",
            "code": self.problem.code,
            "task": self.task_name,
            "of": PLURALS[self.owner],
            "count": self.count,
            "kinds": {kind: self.kinds[kind] for kind in KINDS if self.kinds[kind]},
            "example": self.example,
            "text": str(self),
        }


class Findings:
    """The problems that a check has found, each once for each task."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, CallProblem, bool, str], CallFinding] = {}

    def add(self, task_name: str, problem: CallProblem, kind: str, count: int, example: int) -> None:
        """Add calls that have a problem."""
        key = task_name, problem, kind in HARMLESS, OWNERS[kind]
        finding = self._found.setdefault(key, CallFinding(*key, example=example))
        finding.kinds[kind] += count
        finding.example = min(finding.example, example)

    def sorted(self) -> list[CallFinding]:
        """Return the findings: errors before warnings, and the most frequent first."""
        return sorted(
            self._found.values(), key=lambda each: (each.is_warning, -each.count, each.task_name, each.problem)
        )


@dataclass(slots=True)
class CheckedCalls:
    """How much a check has read."""

    jobs: int = 0
    dead_jobs: int = 0
    schedules: int = 0
    callbacks: int = 0
    """Callbacks of batches that can still be called."""
    compensations: int = 0
    """Compensations of steps that can still be called."""
    is_complete: bool = True
    """Whether it read all jobs that wait or run."""
    is_complete_dead: bool = True
    """Whether it read all dead letters."""
    findings: Findings = field(default_factory=Findings)


def check(connection: Connection, limit: int) -> CheckedCalls:
    """Compare the stored calls of a database with the tasks of this process.

    Args:
        connection: An engine connection to the database of the jobs.
        limit: Number of jobs to read at most: waiting and running ones, and as many dead letters.
    """
    checked = CheckedCalls()
    calls = _Calls(connection, checked.findings)
    checked.jobs, checked.is_complete = _read_all(
        [
            *_lanes(connection),
            stored_calls.waiting_calls(connection, BATCH),
            stored_calls.running_calls(connection, BATCH),
        ],
        calls,
        limit,
    )
    dead = stored_calls.dead_calls(connection, BATCH)
    checked.dead_jobs, checked.is_complete_dead = _read_all([dead], calls, limit)
    checked.schedules = _check_schedules(connection, checked.findings)
    callbacks = stored_calls.pending_callbacks(connection, BATCH)
    checked.callbacks = _check_callbacks(callbacks, "callback", checked.findings)
    compensations = stored_calls.pending_compensations(connection, BATCH)
    checked.compensations = _check_callbacks(compensations, "compensation", checked.findings)
    return checked


def _read_all(sources: Sequence[stored_calls.Ids], calls: _Calls, limit: int) -> tuple[int, bool]:
    """Check the jobs of several sources, a batch of each in turn, so that a long queue hides no other one.

    Return how many jobs were read, and whether these were all of them.
    """
    waiting, count = deque(sources), 0
    while waiting:
        source = waiting.popleft()
        for job_ids in source:
            job_ids = job_ids[: limit - count + 1]
            if count + len(job_ids) > limit:  # one more than may be read: there are others
                calls.check(job_ids[:-1])
                return limit, False
            count += len(job_ids)
            calls.check(job_ids)
            waiting.append(source)
            break
    return count, True


def _lanes(connection: Connection) -> Iterator[stored_calls.Ids]:
    """Yield the ready jobs of each lane."""
    lanes = [*claims.scan_lanes(connection).due_in]
    lanes += [Lane(*lane, is_limited=True) for lane in limited_lanes(connection)]
    return (stored_calls.ready_calls(connection, lane, BATCH) for lane in lanes)


class _Calls:
    """Compares the calls of jobs with the tasks of this process. Values are tried once for each shape."""

    def __init__(self, connection: Connection, findings: Findings) -> None:
        self.connection = connection
        self.findings = findings
        self._problems: dict[Shape, list[CallProblem]] = {}
        """The problems of each shape, once it was seen."""

    def check(self, job_ids: Sequence[int]) -> None:
        """Add the problems of these jobs."""
        if not job_ids:
            return
        try:
            with savepoint(self.connection):
                shapes = stored_calls.call_shapes(self.connection, job_ids)
        except FAILURES as error:  # PostgreSQL does not read every escape sequence that JSON has
            if not may_divide(self.connection, error):
                raise
            self._check_in_python(job_ids)
            return
        for shape in shapes:
            if shape.positional is None:
                self._check_in_python(shape.job_ids)
            else:
                self._check_shape(shape, shape.positional)

    def _check_shape(self, shape: StoredShape, positional: int) -> None:
        key = shape.task_name, positional, shape.names
        problems = self._problems.get(key)
        if problems is None:
            task = registry.get(shape.task_name)
            problems = (
                [unknown_task(key[0], shape.names)] if task is None else call_problems(task, positional, shape.names)
            )
            if not problems:
                sample = stored_calls.read_calls(self.connection, shape.job_ids)
                problems = [each for call in sample for each in stored_problems(call.task_name, call.arguments, {})]
                if not sample:  # the job has ended since: the next job of this shape is tried instead
                    return
            self._problems[key] = problems
        for problem in problems:
            self.findings.add(shape.task_name, problem, shape.kind, shape.total, shape.job_ids[0])

    def _check_in_python(self, job_ids: Sequence[int]) -> None:
        for start in range(0, len(job_ids), READ_AT_ONCE):
            for call in stored_calls.read_calls(self.connection, job_ids[start : start + READ_AT_ONCE]):
                for problem in stored_problems(call.task_name, call.arguments, self._problems):
                    self.findings.add(call.task_name, problem, call.kind, 1, call.job_id)


def stored_problems(task_name: str, arguments: str, known: dict[Shape, list[CallProblem]]) -> list[CallProblem]:
    """Return the problems of one stored call, whose arguments can be encoded. `known` has those of earlier shapes."""
    task = registry.get(task_name)
    if task is None:
        return [unknown_task(task_name)]
    try:
        args, kwargs = decode_arguments(arguments)
    except ValueError as error:
        return [CallProblem("unreadable_arguments", HAVE, f"stored arguments that this code cannot read: {error}")]
    key = task_name, len(args), tuple(sorted(kwargs))
    if key not in known:
        value = None if (problems := call_problems(task, *key[1:])) else value_problem(task, args, kwargs)
        known[key] = problems or ([] if value is None else [value])
    return known[key]


def _check_schedules(connection: Connection, findings: Findings) -> int:
    """Add the problems of the stored schedules. Return how many there are."""
    declared = declarations.definitions(connection.alias)
    count = 0
    for schedule in stored_calls.scheduled_calls(connection, BATCH):
        count += 1
        if schedule.is_of_code and schedule.name in declared:  # the workers replace its call with the declared one
            continue
        kind = "undeclared schedule" if schedule.is_of_code else "schedule"
        kind = kind if schedule.is_enabled else "paused schedule"
        for problem in stored_problems(schedule.task_name, schedule.arguments, {}):
            findings.add(schedule.task_name, problem, kind, 1, schedule.schedule_id)
    return count


def _check_callbacks(pending: Iterator[stored_calls.Callbacks], kind: str, findings: Findings) -> int:
    """Add the problems of the callbacks or compensations that can still be called. Return how many there are."""
    count, known = 0, dict[Shape, list[CallProblem]]()
    for owner_id, calls in pending:
        for task_name, arguments in calls:
            for problem in stored_problems(task_name, arguments, known):
                findings.add(task_name, problem, kind, 1, owner_id)
            count += 1
    return count
