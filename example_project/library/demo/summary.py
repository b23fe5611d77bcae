"""Compute the totals of a demo run by task, and check that they add up. Called by the command `demo`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from django.db.models import Count, F, Q, QuerySet

from django_pgqueue.models import Execution, Job
from django_pgqueue.states import Outcome, State
from example_project.library.models import Document
from example_project.library.tasks import index_document, most_used_words

from .feeding import own_jobs


class Row(NamedTuple):
    """The jobs and executions of one task."""

    task_name: str
    jobs: int
    succeeded: int
    dead: int
    failed_attempts: int
    released: int

    @property
    def adds_up(self) -> bool:
        """Whether every job has succeeded or died."""
        return self.jobs == self.succeeded + self.dead


class Summary(NamedTuple):
    """The figures of a demo run."""

    rows: list[Row]
    documents: int
    indexed: int
    reasons: dict[str, int]

    @property
    def indexing(self) -> Row:
        """The row of the jobs that index documents."""
        empty = Row(index_document.name, 0, 0, 0, 0, 0)
        return next((row for row in self.rows if row.task_name == index_document.name), empty)

    def problems(self) -> Iterator[str]:
        """Yield each sum that does not add up."""
        yield from (
            f"{row.task_name}: {row.jobs} jobs, but {row.succeeded} succeeded + {row.dead} dead"
            for row in self.rows
            if not row.adds_up
        )
        row = self.indexing
        if self.documents != row.succeeded + row.dead:
            yield f"{self.documents} documents, but {row.succeeded} succeeded + {row.dead} dead jobs"
        if self.indexed != row.succeeded:
            yield f"{self.indexed} documents are indexed, but {row.succeeded} jobs succeeded"
        if sum(self.reasons.values()) != sum(row.dead for row in self.rows):
            yield "the number of reasons differs from the number of dead letters"

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table and the sums."""
        yield f"  {'task':<20}{'jobs':>8}{'succeeded':>11}{'dead':>7}{'failed attempts':>17}{'released':>12}"
        for row in [*self.rows, self.total]:
            name = row.task_name.rpartition(".")[2]
            yield f"  {name:<20}{row[1]:>8,}{row[2]:>11,}{row[3]:>7,}{row[4]:>17,}{row[5]:>12,}"
        row = self.indexing
        yield ""
        yield f"  {self.documents:,} documents in = {row.succeeded:,} succeeded + {row.dead:,} dead"
        for reason, count in sorted(self.reasons.items(), key=lambda item: -item[1]):
            yield f"  {count:>8,} dead: {reason}"

    @property
    def total(self) -> Row:
        """The sum of all rows."""
        sums = (sum(column) for column in list(zip(*self.rows, strict=True))[1:])
        return Row("all", *sums)


def summarise() -> Summary:
    """Read the figures of the library's jobs from the database."""
    executions = Counter[tuple[str, str]]()
    of_jobs = Execution.objects.filter(job__in=own_jobs())
    for name, outcome, count in of_jobs.values_list("job__task_name", "outcome").annotate(n=Count("pk")).order_by():
        executions[name, outcome] = count
    succeeded, dead = (Count("pk", filter=Q(state=state)) for state in (State.SUCCEEDED, State.DEAD))
    jobs: QuerySet[Job, tuple[str, int, int, int]] = (
        own_jobs().values_list("task_name").annotate(jobs=Count("pk"), succeeded=succeeded, dead=dead)
    )
    return Summary(
        rows=[Row(*job, *_attempts(executions, job[0])) for job in jobs.order_by("task_name")],
        documents=Document.objects.count(),
        indexed=Document.objects.filter(indexed_at__isnull=False).count(),
        reasons=_reasons(),
    )


def _attempts(executions: Counter[tuple[str, str]], name: str) -> tuple[int, int]:
    """Return how many executions of a task failed, and how many were released or snoozed, which do not count."""
    failed = executions[name, Outcome.FAILED] + executions[name, Outcome.CRASHED]
    return failed, executions[name, Outcome.SNOOZED] + executions[name, Outcome.RELEASED]


def _reasons() -> dict[str, int]:
    """Count dead jobs by reason: the last execution's error up to its first colon, after which the details begin."""
    last: dict[int, str] = {}
    dead = Execution.objects.filter(job__in=own_jobs().filter(state=State.DEAD)).order_by("pk")
    for job_id, kind, error in dead.values_list("job_id", "exception_class", "error"):
        last[job_id] = f"{error.partition(':')[0]} ({kind.rpartition('.')[2]})"
    return dict(Counter(last.values()))


def words_found() -> str:
    """Return the words that the delayed job returned."""
    result = own_jobs().filter(task_name=most_used_words.name).values_list(F("result"), flat=True).first()
    return ", ".join(result or [])
