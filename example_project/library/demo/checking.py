"""Compare what the jobs stored with the files themselves, counted in another way than the jobs do.

Called by the command `check_documents`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

from django.db import connection

from django_pgqueue.models import Execution, Job
from django_pgqueue.states import Outcome, State
from example_project.library import tasks
from example_project.library.models import Document

from .feeding import DELAY_SECONDS, own_jobs

VECTOR_EACH: Final = 40
"""The vector of one document in this many is computed again, because that is the expensive part."""
VECTOR: Final = """
    SELECT vector = setweight(to_tsvector('english', title), 'A') || to_tsvector('english', %s)
    FROM library_document
    WHERE id = %s
"""

Counts = tuple[int, int]


class Check:
    """A check of all documents and jobs. `problems` is empty if all are correct; the counters say what was checked."""

    def __init__(self) -> None:
        self.documents = 0
        self.vectors = 0
        self.jobs = 0
        self.problems: list[str] = []
        self._sums: dict[str, tuple[int, int, int]] = {}

    def run(self) -> Check:
        """Check the file of every document, then the executions of every job."""
        indexing = own_jobs().filter(task_name=tasks.index_document.name).order_by("pk")
        states = {arguments["args"][0]: state for arguments, state in indexing.values_list("arguments", "state")}
        for document in Document.objects.defer("vector").order_by("pk").iterator():
            self._check_document(document, states.get(document.pk))
        outcomes = outcomes_by_job()
        for job in own_jobs().iterator():
            self.jobs += 1
            self.problems += [
                f"job {job.pk}: {problem}" for problem in self._problems_of(job, outcomes.get(job.pk, []))
            ]
        return self

    # ---------------------------------------------------------------- documents

    def _check_document(self, document: Document, state: str | None) -> None:
        counts = count_directly(document.path)
        expected = State.DEAD if counts is None else State.SUCCEEDED
        if state != expected:
            self.problems.append(f"{document.path}: its job is {state}, not {expected}")
        stored = (document.lines, document.words, document.sha256)
        if stored != ((None, None, "") if counts is None else (*counts, digest(document.path))):
            self.problems.append(f"{document.path}: stored are {stored}, counted {counts}")
        if counts is not None:
            lines, words = counts
            count, all_lines, all_words = self._sums.get(document.kind, (0, 0, 0))
            self._sums[document.kind] = (count + 1, all_lines + lines, all_words + words)
            if self.documents % VECTOR_EACH == 0:
                self._check_vector(document)
        self.documents += 1

    def _check_vector(self, document: Document) -> None:
        with open(document.path, encoding="utf-8", newline="") as file, connection.cursor() as cursor:
            cursor.execute(VECTOR, [file.read(tasks.MOST_CHARACTERS), document.pk])
            is_same = cursor.fetchone() == (True,)
        self.vectors += 1
        if not is_same:
            self.problems.append(f"{document.path}: its full-text vector differs from that of the file")

    # ---------------------------------------------------------------- jobs

    def _problems_of(self, job: Job, outcomes: list[str]) -> Iterator[str]:
        """Yield each problem with a job's executions, times or result."""
        arguments = job.arguments["args"]
        failures = arguments[1] if job.task_name == tasks.announce_document.name else 0
        last = Outcome.FAILED if job.state == State.DEAD else Outcome.SUCCEEDED
        if not are_as_expected(outcomes, failures, last):
            yield f"its attempts ended {', '.join(outcomes)}"
        if job.task_name == tasks.most_used_words.name and wait_seconds(job) < DELAY_SECONDS:
            yield f"its delay is {DELAY_SECONDS} s, but it ran after {wait_seconds(job)} s"
        if job.task_name == tasks.summarise_kind.name and self._expected_sum(arguments[0]) != job.result:
            yield f"its sum is {job.result}, not {self._expected_sum(arguments[0])}"

    def _expected_sum(self, kind: str) -> dict[str, int]:
        return dict(zip(("documents", "lines", "words"), self._sums.get(kind, (0, 0, 0)), strict=True))


def are_as_expected(outcomes: list[str], failures: int, last: Outcome) -> bool:
    """Return whether exactly the wanted attempts failed, and the last attempt has the wanted outcome.

    Crashes in between are allowed: if a worker is killed, the attempt counts, and another one follows.
    """
    earlier = outcomes[:-1]
    return (
        outcomes[-1:] == [last]
        and len(earlier) >= failures
        and all(outcome in (Outcome.FAILED, Outcome.CRASHED) for outcome in earlier[:failures])
        and all(outcome == Outcome.CRASHED for outcome in earlier[failures:])
    )


def count_directly(path: str) -> Counts | None:
    """Count the lines and words of a file line by line. Return None if it is not text."""
    lines = words = 0
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in file:
                if "\0" in line:
                    return None
                lines += 1
                words += len(line.split())
    except UnicodeDecodeError:
        return None
    return lines, words


def digest(path: str) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def outcomes_by_job() -> dict[int, list[str]]:
    """Return the outcomes of each job's attempts in order, without releases and snoozes, which do not count."""
    found: dict[int, list[str]] = {}
    uncounted = [Outcome.SNOOZED, Outcome.RELEASED]
    executions = Execution.objects.filter(job__in=own_jobs()).exclude(outcome__in=uncounted).order_by("pk")
    for job_id, outcome in executions.values_list("job_id", "outcome"):
        found.setdefault(job_id, []).append(str(outcome))
    return found


def wait_seconds(job: Job) -> float:
    """Return the seconds from a job's enqueue to its first claim."""
    claimed: Any = Execution.objects.filter(job=job).order_by("pk").values_list("claimed_at", flat=True)[0]
    return float((claimed - job.enqueued_at).total_seconds())
