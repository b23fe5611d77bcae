"""Test each cell of the table in docs/production/security.md that says what a role can do to the jobs of others.

For each column, statements do the same thing in different ways. The cell is the answer of the first statement that the
server allows the role to run, or "no" if the server refuses all of them. PostgreSQL checks the privileges of a
statement whether or not it changes a row.
"""

from __future__ import annotations

import re
from contextlib import closing

import pytest

from django_pgqueue.declared.limits import Limit
from tests import helpers
from tests.concurrency import limits
from tests.documents import prose, table
from tests.security.conftest import GROUPS, ROLE, block_after, granted, grants_after, sqlstate

PAGE = "docs/production/security.md"
JOB = "INSERT INTO pgqueue_job (task_name, arguments) VALUES ('x', '{}')"
UNDO = (
    "INSERT INTO pgqueue_step (job_id, name, position, kind, attempt, started_at, compensation) "
    "VALUES (1, 'x', 1, 'step', 1, now(), '{}')"
)
ACT = "INSERT INTO pgqueue_audit (action, filter, next_batch_at) VALUES ('{0}', '{{}}', now())"
BY_ACT = "by a bulk act"
ANSWERS = {
    "adds jobs": {
        JOB: "yes",
        "UPDATE pgqueue_schedule SET task_name = 'x'": "yes",
        UNDO: "yes",
        "UPDATE pgqueue_step SET compensation = '{}'": "yes",
        "INSERT INTO pgqueue_batch (on_complete) VALUES ('{}')": "as callbacks",
        "UPDATE pgqueue_batch SET on_complete = '{}'": "as callbacks",
    },
    "runs jobs again": {"UPDATE pgqueue_job SET state = 'ready'": "yes", ACT.format("retry"): BY_ACT},
    "changes arguments": {
        "UPDATE pgqueue_job SET task_name = 'x'": "yes",
        "UPDATE pgqueue_job SET arguments = '{}'": "yes",
        "UPDATE pgqueue_schedule SET arguments = '{}'": "of schedules",
        ACT.format("erase"): BY_ACT,
    },
    "changes results": {"UPDATE pgqueue_job SET result = '1'": "yes", ACT.format("erase"): BY_ACT},
    "postpones": {"UPDATE pgqueue_job SET run_after = now() + interval '1 year'": "yes"},
    "stops": {
        "UPDATE pgqueue_job SET state = 'cancelled', finished_at = now()": "yes",
        "UPDATE pgqueue_job SET cancel_requested_at = now()": "yes",
        ACT.format("cancel"): BY_ACT,
    },
    "pauses queues": {"INSERT INTO pgqueue_pause (kind, name) VALUES ('queue', 'x')": "yes"},
    "deletes": {"DELETE FROM pgqueue_job": "yes", ACT.format("delete"): BY_ACT},
    "reads arguments": {
        "SELECT arguments FROM pgqueue_job": "yes",
        "SELECT arguments FROM pgqueue_schedule": "of schedules",
    },
    "reads results": {
        "SELECT result FROM pgqueue_job": "yes",
        "SELECT result FROM pgqueue_step": "yes",
        "SELECT payload FROM pgqueue_event": "of events",
    },
    "sends events": {"INSERT INTO pgqueue_event (name, key) VALUES ('x', '')": "yes"},
}
FURTHER = {"`queue_worker` that undoes steps": ("worker", "If you [undo steps]")}
"""Rows of a role with the further grants that follow these words of the page."""


def rows_of_page() -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in table(PAGE, "role")}


def found_answers(refusals, role: str) -> list[str]:
    """Return what a role can do, by the server's answers."""
    refused = refusals(role, [statement for answers in ANSWERS.values() for statement in answers])
    assert {state for state in refused.values() if state != "42501"} <= {None}
    return [
        next((answer for statement, answer in answers.items() if refused[statement] is None), "no")
        for answers in ANSWERS.values()
    ]


def test_role_table_columns_are_the_tested_ones():
    [heading] = [line for line in prose(PAGE).splitlines() if line.startswith("| role |")]
    assert [cell.strip() for cell in heading.strip("|").split("|")][1:] == list(ANSWERS)
    assert set(rows_of_page()) == {f"`queue_{name}`" for name in GROUPS} | set(FURTHER)


@pytest.mark.parametrize("role", GROUPS)
def test_role_table_each_cell_is_what_the_server_allows(refusals, role):
    assert found_answers(refusals, role) == rows_of_page()[f"`queue_{role}`"]


@pytest.mark.parametrize("row", FURTHER)
def test_role_table_further_grants_give_what_it_says(superuser, refusals, made_roles, row):
    role, words = FURTHER[row]
    with granted(superuser, grants_after(words), made_roles.user(role)):
        assert found_answers(refusals, role) == rows_of_page()[row]


def test_role_table_statements_succeed_as_superuser(superuser):
    """Otherwise a mistake in a statement would look like a refusal."""
    for answers in ANSWERS.values():
        for statement in answers:
            with helpers.transaction(superuser):
                assert sqlstate(superuser, statement) is None, statement


# ------------------------------------------------------------------ locks on limit keys

LOCK = "SELECT pg_advisory_lock(hashtextextended('pgqueue:' || 'stripe', 0))"
STRIPE = Limit("stripe", concurrency=1)


def test_limit_key_lock_of_any_login_is_shown_and_ended(superuser, as_role):
    """The page says how an operator finds the session that stops a limit key."""
    limits.add(superuser, "stripe")
    with as_role("viewer"), closing(helpers.connect()) as session:
        session.execute(LOCK)
        assert limits.claim(superuser, STRIPE).claimed == []
        [[process, user, *_]] = superuser.execute(block_after("This statement shows the sessions")).fetchall()
        assert (process, user) == (session.info.backend_pid, session.info.user)
        assert helpers.scalar(superuser, "SELECT pg_terminate_backend(%s, 10000)", [process])
    assert len(limits.claim(superuser, STRIPE).claimed) == 1


def test_limit_key_lock_revoked_from_public_is_for_workers_only(superuser, as_role, made_roles):
    limits.add(superuser, "stripe")
    revoke = ROLE.sub(lambda role: made_roles.group(role[1]), block_after("allow them to workers only"))
    functions = re.findall(r"pg_\w+\(bigint\)", revoke)
    superuser.execute(revoke)
    try:
        for role in set(GROUPS) - {"worker", "owner"}:
            with as_role(role), closing(helpers.connect()) as session:
                for function in functions:
                    assert sqlstate(session, f"SELECT {function.replace('bigint', '1')}") == "42501", (role, function)
        with as_role("worker"), closing(helpers.connect()) as session:
            assert sqlstate(session, LOCK) == "42501"
            assert len(limits.claim(session, STRIPE).claimed) == 1
    finally:
        superuser.execute(f"GRANT EXECUTE ON FUNCTION {', '.join(functions)} TO PUBLIC")
