"""Signed tokens of batches, and their view for browsers: a token gives access to its own batch only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core import signing
from django.core.signing import BadSignature, SignatureExpired
from django.test import Client

from django_pgqueue import Batch
from django_pgqueue.models import Job, JobBatch
from django_pgqueue.testing import run_jobs
from django_pgqueue.tokens import BATCH_SALT, SALT, batch_from_token, batch_token, job_from_token, job_token
from tests.app import tasks
from tests.privacy.test_tokens import ANY_TIME, DAY, SECRET, later

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.privacy.urls")]


@pytest.fixture
def batch() -> Batch:
    made = Batch(description=SECRET).open()
    made.add([tasks.noop.s(SECRET, password=SECRET), tasks.fail.using(max_attempts=1).s(SECRET)])
    return made


def status_of(client: Client, token: str, url: str = "batches") -> Any:
    return client.get(f"/{url}/{token}/")


def test_batch_from_token_returns_the_row(batch: Batch, django_assert_num_queries: Any) -> None:
    row = batch.record
    with django_assert_num_queries(0):
        tokens = [batch_token(each) for each in (batch, row, row.pk, str(row.pk))]
    assert not any(SECRET in token for token in tokens)
    for token in tokens:
        with django_assert_num_queries(1):
            assert batch_from_token(token) == row


def test_token_of_a_job_never_opens_a_batch_and_the_reverse(batch: Batch, client: Client) -> None:
    """The job and the batch have one id."""
    job = tasks.noop.enqueue()
    Job.objects.filter(pk=job.pk).update(id=10**6)
    JobBatch.objects.filter(pk=batch.record.pk).update(id=10**6)
    tokens = job_token(10**6), batch_token(10**6)
    assert job_from_token(tokens[0]).pk == batch_from_token(tokens[1]).pk == 10**6
    with pytest.raises(BadSignature):
        batch_from_token(tokens[0])
    with pytest.raises(BadSignature):
        job_from_token(tokens[1])
    found = {
        (url, kind): status_of(client, token, url).status_code
        for url in ("jobs", "batches")
        for kind, token in enumerate(tokens)
    }
    assert found == {("jobs", 0): 200, ("jobs", 1): 404, ("batches", 0): 404, ("batches", 1): 200}


def test_batch_token_of_unstored_batch_or_anonymous_user_is_refused(batch: Batch) -> None:
    for wrong in (Batch(), JobBatch(), None, 0, -1, "", "x", "1.5", 2**63, 1.5, tasks.noop.enqueue()):
        with pytest.raises(ValueError, match="needs a batch that is stored"):
            batch_token(wrong)  # type: ignore[arg-type]  # wrong on purpose
    for user in (AnonymousUser(), User(username="unsaved")):
        with pytest.raises(ValueError, match=r"batch_token\(\) needs a user with a primary key"):
            batch_token(batch, user=user)
    with pytest.raises(ValueError, match="no alias 'elsewhere'"):
        batch_token(1, database="elsewhere")


@pytest.mark.parametrize(
    ("by_row", "seconds", "is_named"),
    [
        (True, 0, True),
        (True, 0.002, False),
        (True, -DAY, False),
        (False, -DAY, True),
        (False, 50, True),
        (False, 70, False),
    ],
)
def test_token_names_no_batch_that_gets_its_id_later(
    batch: Batch, client: Client, by_row: bool, seconds: float, is_named: bool
) -> None:
    row = batch.record
    token = batch_token(row if by_row else batch)
    JobBatch.objects.filter(pk=row.pk).update(created_at=row.created_at + timedelta(seconds=seconds))
    assert (status_of(client, token).status_code == 200) is is_named
    if not is_named:
        with pytest.raises(JobBatch.DoesNotExist, match="is another one"):
            batch_from_token(token)


def test_batch_token_expires_and_belongs_to_its_user(
    batch: Batch, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, eve = (User.objects.create_user(name) for name in ("ada", "eve"))
    token = batch_token(batch, user=ada)
    assert batch_from_token(token, user=ada).pk == batch.id
    with pytest.raises(BadSignature, match="another user"):
        batch_from_token(token, user=eve)
    for user, status in ((eve, 404), (ada, 200)):
        assert status_of(client, token).status_code == 404
        client.force_login(user)
        assert status_of(client, token).status_code == status
        client.logout()
    client.force_login(ada)
    later(monkeypatch, 61)
    assert status_of(client, token).status_code == 200
    assert status_of(client, token, "quick_batches").status_code == 404
    with pytest.raises(SignatureExpired):
        batch_from_token(token, user=ada, max_age=60)


def test_forged_batch_token_is_refused_without_a_query(
    batch: Batch, client: Client, django_assert_num_queries: Any
) -> None:
    content = [batch.id, "default", None, *ANY_TIME]
    forged = [
        signing.dumps(content),
        signing.dumps(content, salt=SALT),
        signing.dumps(content, key="other", salt=BATCH_SALT),
        signing.dumps([batch.id, "elsewhere", None, *ANY_TIME], salt=BATCH_SALT),
        signing.dumps([batch.id, "default", False, None, *ANY_TIME], salt=BATCH_SALT),
        f"{batch_token(batch)}x",
        str(batch.id),
    ]
    with django_assert_num_queries(0):
        for token in forged:
            assert status_of(client, token).json() == {"error": "not found"}


def test_batch_view_counts_jobs_and_says_nothing_else(
    batch: Batch, client: Client, django_assert_num_queries: Any
) -> None:
    token = batch_token(batch)
    with django_assert_num_queries(2):
        answer = status_of(client, token)
    none = dict.fromkeys(("waiting", "running", "succeeded", "dead", "cancelled"), 0)
    assert answer.json() == {
        "state": "open",
        "is_finished": False,
        "progress": {"done": 0, "failed": 0, "total": 2, "fraction": 0.0, "message": ""},
        "jobs": {**none, "ready": 2},
    }
    assert answer.headers["Cache-Control"] == "no-store" and answer.headers["Content-Type"] == "application/json"
    with Batch(parent=batch) as nested:
        nested.add([tasks.noop.s()])
    batch.close()
    assert status_of(client, token).json()["state"] == "running"
    run_jobs()
    answer = status_of(client, token)
    assert answer.json() == {
        "state": "failed",
        "is_finished": True,
        "progress": {"done": 3, "failed": 1, "total": 3, "fraction": 1.0, "message": ""},
        "jobs": {**none, "ready": 0, "succeeded": 2, "dead": 1},
    }
    assert SECRET not in answer.content.decode()


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete", "options", "trace"])
def test_batch_view_refuses_other_methods(batch: Batch, client: Client, method: str) -> None:
    answer = getattr(client, method)(f"/batches/{batch_token(batch)}/")
    assert answer.status_code == 405 and answer.headers["Cache-Control"] == "no-store"


def test_batch_view_of_a_deleted_batch_is_not_found(batch: Batch, client: Client) -> None:
    token = batch_token(batch)
    JobBatch.objects.filter(pk=batch.record.pk).update(id=10**7)
    assert status_of(client, token).status_code == 404
    assert status_of(client, token).headers["Cache-Control"] == "no-store"
    with pytest.raises(JobBatch.DoesNotExist):
        batch_from_token(token)
