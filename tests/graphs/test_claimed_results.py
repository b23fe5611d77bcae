"""Claims bring the results that nodes need, in one query. Nodes that are left out read their results themselves."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import contextmanager
from contextvars import copy_context
from unittest import mock

import psycopg
import pytest
from django.db import connection as django_connection

from django_pgqueue import Dead, Workflow, chain, group
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import completions, graphs
from django_pgqueue.lifecycle.types import Claimed, NodeResult
from django_pgqueue.worker.claiming import node_results
from django_pgqueue.worker.execution.chunk_attempt import attempt_of
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.execution.stored_values import _check_amounts, needed_ranges
from django_pgqueue.worker.isolation import wire
from tests import helpers

from . import tasks

NOTES = mock.Mock()
"""No task here reports progress."""


def end_ready(engine, *results: str | None) -> None:
    """Run the ready jobs by hand, with these results as JSON, and advance their dependents."""
    claimed = helpers.claim_all(engine)
    assert len(claimed) == len(results)
    for job, result in zip(claimed, results, strict=True):
        completions.succeed(engine, helpers.succeeded(job.key, result=result))
    graphs.advance(engine, [job.job_id for job in claimed])


def claim(engine) -> list[Claimed]:
    """Claim the ready jobs as a worker does, with the results that they need."""
    return node_results.with_results(engine, helpers.claim_all(engine))


@contextmanager
def statements(engine: psycopg.Connection, monkeypatch: pytest.MonkeyPatch):
    """Yield the statements that this session executes."""
    seen: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(type(engine), "record_statement", lambda statement, seconds: seen.append(statement))
        yield seen


def attempt(job: Claimed) -> Report:
    """Run an attempt, in a context of its own as the slots do."""
    return copy_context().run(attempt_of(job, "default", NOTES).run)


def run(job: Claimed) -> object:
    """Run an attempt without a query. Return its result as JSON."""

    def refuse(*args: object) -> None:
        raise AssertionError(f"a query: {args[1]}")

    with django_connection.execute_wrapper(refuse):
        report = attempt(job)
    assert report.ending is Ending.SUCCEEDED, report.error
    assert report.claimed.results is None, "the reports that wait to be written would fill the memory"
    return report.result


def check_reads_itself(engine, *results: str) -> None:
    """Check that a claim leaves the last node to itself, after the others have ended with these results."""
    end_ready(engine, *results)
    [job] = claim(engine)
    assert job.results is None
    assert attempt(job).ending is Ending.SUCCEEDED


def test_claim_reads_results_of_all_nodes_with_one_query(engine, monkeypatch):
    for number in range(5):
        chain(tasks.number.s(number)).then(tasks.double).enqueue()
    end_ready(engine, "0", "1", "2", "3", "4")

    claimed = helpers.claim_all(engine)
    with statements(engine, monkeypatch) as seen:
        claimed = node_results.with_results(engine, claimed)

    assert [statement.split("*/")[0] for statement in seen] == ["/* pgqueue:read_results "]
    assert [run(job) for job in claimed] == ["0", "2", "4", "6", "8"]


def test_claim_of_nodes_without_results_reads_nothing(engine, monkeypatch):
    workflow = Workflow()
    first = workflow.add(tasks.number.s(1))
    workflow.add(tasks.number.s(2), after=[first])
    workflow.enqueue()
    tasks.number.enqueue(3)
    with statements(engine, monkeypatch) as seen:
        claimed = helpers.claim_all(engine)
        assert node_results.with_results(engine, claimed) is claimed
    assert len(seen) == 1


def test_coroutine_with_claimed_results_starts_no_thread(engine, monkeypatch):
    chain(tasks.number.s(3)).then(tasks.async_double).enqueue()
    end_ready(engine, "3")
    [job] = claim(engine)
    monkeypatch.setattr("django_pgqueue.worker.execution.attempt.sync_to_async", None)
    assert asyncio.run(attempt_of(job, "default", NOTES).run_async()).result == "6"


def test_node_gets_null_results_and_lists_in_order(engine):
    group(tasks.number.s(2), tasks.number.s(1)).then(tasks.total).enqueue()
    end_ready(engine, "7", "8")
    [job] = claim(engine)
    assert [result.result for result in job.results.values()] == ["7", "8"]
    assert run(job) == "15"

    chain(tasks.note.s("first")).then(tasks.note).enqueue()
    completions.succeed(engine, helpers.succeeded(job.key))
    end_ready(engine, None)
    [job] = claim(engine)
    assert run(job) == "[null]"


@pytest.mark.parametrize("size", [5_000, 50_000], ids=["large", "large, but stored compressed"])
def test_large_result_is_left_to_the_node(engine, size):
    chain(tasks.note.s("first")).then(tasks.note).enqueue()
    text = "x" * size if size == 50_000 else random.Random(1).randbytes(size).hex()
    check_reads_itself(engine, f'"{text}"')


def test_node_with_many_results_reads_them_itself(engine, monkeypatch):
    monkeypatch.setattr(node_results, "MOST_RESULTS", 2)
    group(*(tasks.number.s(number) for number in range(3))).then(tasks.total).enqueue()
    check_reads_itself(engine, "1", "2", "3")


def test_claim_keeps_a_bounded_number_of_results(engine, monkeypatch):
    monkeypatch.setattr(node_results, "MOST_OF_CLAIM", 2)
    for number in range(3):
        chain(tasks.number.s(number)).then(tasks.double).enqueue()
    end_ready(engine, "0", "1", "2")
    assert [job.results is None for job in claim(engine)] == [False, False, True]


def test_result_of_a_removed_job_ends_the_node(engine):
    workflow = chain(tasks.number.s(1)).then(tasks.double).enqueue()
    end_ready(engine, "1")
    engine.execute("DELETE FROM pgqueue_job WHERE id = %s", [workflow.job_ids[0]])
    [job] = claim(engine)
    report = attempt(job)
    assert (report.ending, "is gone" in report.error) == (Ending.FAILED, True)


@pytest.mark.parametrize("marker", ['"text"', '[["a", 2]]', "[[1]]", "[[1, 99999999999999999999]]"])
def test_damaged_marker_does_not_stop_the_other_nodes(engine, marker):
    workflows = [chain(tasks.number.s(number)).then(tasks.double).enqueue() for number in (1, 2)]
    end_ready(engine, "1", "2")
    damaged = '{"args": [{"pgqueue_result": ' + marker + '}], "kwargs": {}}'
    engine.execute("UPDATE pgqueue_job SET arguments = %s WHERE id = %s", [damaged, workflows[0].job_ids[1]])
    first, second = claim(engine)
    assert first.results is None
    assert run(second) == "4"


def test_overlapping_markers_read_each_result_once():
    """Otherwise, arguments of 1 MiB could name the results of 2,000 dependencies 80,000 times."""
    ranges = [[first, 2000] for first in range(1, 500)] + [[1, last] for last in range(1, 500)] + [[3000, 3001]]
    assert needed_ranges({"args": [{"pgqueue_result": ranges}]}) == [(1, 2000), (3000, 3001)]


@pytest.mark.parametrize("ranges", [[[5, 1]], [[1, 2]] * 500_001])
def test_markers_of_impossible_amounts_end_the_node(ranges):
    found = {1: NodeResult("succeeded", "1"), 2: NodeResult("succeeded", "2")}
    with pytest.raises(Dead):
        _check_amounts({"args": [{"pgqueue_result": ranges}]}, found)


def test_failed_read_leaves_the_claimed_jobs_to_run(engine):
    chain(tasks.number.s(1)).then(tasks.double).enqueue()
    end_ready(engine, "1")
    claimed = helpers.claim_all(engine)
    closed = helpers.connect()
    closed.close()
    [job] = node_results.with_results(closed, claimed)
    assert job.results is None
    assert attempt(job).result == "2"


def test_isolated_process_reads_the_results_itself(engine):
    chain(tasks.number.s(1)).then(tasks.double).enqueue()
    end_ready(engine, "1")
    [job] = claim(engine)
    received = wire.as_claimed(json.loads(json.dumps(wire.as_json(job))))
    assert received == job._replace(results=None)
    assert attempt(received).result == "2"
