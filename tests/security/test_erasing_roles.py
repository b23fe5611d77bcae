"""Which database roles of workers execute a bulk act that erases values, and what the pages say if none does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

import pytest

from django_pgqueue import sql
from django_pgqueue.admin.bulk_acts import no_grants_text
from django_pgqueue.db.engine_connection import EngineConnection, connect
from django_pgqueue.db.notifications import LISTENS
from django_pgqueue.ground import erasure_grants
from django_pgqueue.lifecycle.bulk_acts import Selection, preview, request_act
from django_pgqueue.lifecycle.bulk_filters import ERASED_KINDS
from django_pgqueue.lifecycle.history import may_erase
from django_pgqueue.stats import fleet
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.maintenance.bulk_acts import BulkActs
from tests import helpers
from tests.history.finished import make
from tests.security.conftest import Roles, granted
from tests.test_sql import PARAMETER

WORKER = ("worker",)
OPERATOR = ("worker", "operator")
ARCHIVIST = ("worker", "archivist")
ROLES_OF = {"without": WORKER, "operator": OPERATOR, "archivist": ARCHIVIST}


@contextmanager
def session_of(
    superuser: EngineConnection, as_role, made_roles: Roles, *groups: str, name: str = "fetcher"
) -> Iterator[EngineConnection]:
    """Yield a session of the user of the worker, who is a member of these groups."""
    further = [made_roles.group(group) for group in groups if group != "worker"]
    with (
        granted(superuser, further, made_roles.user("worker")),
        as_role("worker"),
        closing(connect("default", name)) as session,
    ):
        yield session


def request_erasure(superuser: EngineConnection) -> int:
    make(superuser, 2, logs=True)
    selection = Selection("succeeded", erased=ERASED_KINDS)
    return request_act(superuser, "erase", selection, previewed_at=preview(superuser, "erase", selection).at)


@pytest.mark.parametrize("name", ROLES_OF)
def test_worker_erases_only_as_a_member_of_the_archivists(superuser, as_role, made_roles, caplog, name):
    """A worker without the grants changes nothing and leaves the act to others."""
    audit_id = request_erasure(superuser)
    has_grants = name == "archivist"
    with session_of(superuser, as_role, made_roles, *ROLES_OF[name]) as session:
        assert may_erase(session) == has_grants
        for _ in range(2):
            BulkActs(FOREGROUND, lambda: None).go_on(session)
    row = helpers.rows_of(superuser, "pgqueue_audit")[audit_id]
    assert (row["outcome"], row["job_count"], row["left_count"], row["error"]) == (
        ("done", 2, 0, "") if has_grants else (None, 0, 0, "")
    )
    assert ("may not erase values: make it a member of queue_archivist" in caplog.text) != has_grants


def test_pages_name_the_roles_only_if_no_worker_may_erase(superuser, as_role, made_roles):
    """Another session of the same role, such as one of the application, says nothing about the workers."""
    user = made_roles.user("worker")
    with session_of(superuser, as_role, made_roles, *OPERATOR, name="doctor"):
        assert fleet.roles_without_erasure() == [] and no_grants_text("erase", "default") == ""
    for name in ("fetcher", f"fetcher{LISTENS}", "completer", "supervisor"):
        with session_of(superuser, as_role, made_roles, *OPERATOR, name=name):
            assert fleet.roles_without_erasure() == [user], name
            assert f"({user})" in no_grants_text("erase", "default")
            assert no_grants_text("retry", "default") == ""
    with session_of(superuser, as_role, made_roles, *ARCHIVIST):
        assert fleet.roles_without_erasure() == []
    with session_of(superuser, as_role, made_roles, *OPERATOR):
        superuser.execute("SET application_name = 'pgqueue:fetcher'")
        assert fleet.roles_without_erasure() == [], "one worker that may erase is enough"


GRANTS = re.findall(r"\('(\w+)', '(\w*)', '(\w+)'\)", erasure_grants.HAS_GRANTS)


@contextmanager
def as_user_with(
    superuser: EngineConnection, made_roles: Roles, grants: Iterable[tuple[str, str, str]]
) -> Iterator[None]:
    """Let the session be a user who may read all tables and has these grants, and undo everything afterwards."""
    with helpers.transaction(superuser):
        superuser.execute(f"CREATE ROLE {made_roles.database}_eraser")
        superuser.execute(f"GRANT {made_roles.group('viewer')} TO {made_roles.database}_eraser")
        for relation, column, privilege in grants:
            columns = f" ({column})" if column else ""
            superuser.execute(f"GRANT {privilege}{columns} ON {relation} TO {made_roles.database}_eraser")
        superuser.execute("GRANT USAGE ON SEQUENCE pgqueue_audit_job_id_seq TO " + f"{made_roles.database}_eraser")
        superuser.execute(f"SET LOCAL ROLE {made_roles.database}_eraser")
        yield


def test_grants_that_are_checked_are_all_that_the_statements_need(superuser, made_roles):
    assert len(GRANTS) == 20
    with as_user_with(superuser, made_roles, GRANTS):
        assert may_erase(superuser)
        for statement in (sql.history.ERASE, sql.history.ERASE_CALLBACKS):
            params = {**dict.fromkeys(PARAMETER.findall(statement)), "time_shift": "0 s"}
            superuser.execute(f"EXPLAIN {statement}", params, prepare=False)


@pytest.mark.parametrize("missing", range(20))
def test_grant_that_is_missing_keeps_the_role_from_erasing(superuser, made_roles, missing):
    with as_user_with(superuser, made_roles, GRANTS[:missing] + GRANTS[missing + 1 :]):
        assert not may_erase(superuser), GRANTS[missing]
