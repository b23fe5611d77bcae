"""Signed tokens of jobs, and the view for browsers: a token gives access to its own job only."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core import signing
from django.core.signing import BadSignature, SignatureExpired
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from hypothesis import example, given
from hypothesis import strategies as st

from django_pgqueue.models import Job
from django_pgqueue.testing import delete_all_jobs, run_jobs
from django_pgqueue.tokens import SALT, job_from_token, job_token, read_token
from tests.app import tasks

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.privacy.urls")]
SECRET = "hunter2-correct-horse"
DAY = 24 * 3600
ANY_TIME = 0, 2**53


@pytest.fixture
def job() -> Job:
    return tasks.noop.enqueue(SECRET, password=SECRET)


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the clock that signatures are compared with."""
    now = signing.time.time()  # type: ignore[attr-defined]  # the module imports it
    monkeypatch.setattr(signing.time, "time", lambda: now + seconds)  # type: ignore[attr-defined]  # as above


def status_of(client: Client, token: str, url: str = "jobs") -> Any:
    return client.get(f"/{url}/{token}/")


# ------------------------------------------------------------------ tokens


def test_job_from_token_returns_the_job(job, django_assert_num_queries):
    with django_assert_num_queries(0):
        token = job_token(job)
    assert SECRET not in token
    with django_assert_num_queries(1):
        assert job_from_token(token) == job
    assert read_token(token)[:4] == (job.pk, "default", False, None)
    assert job_from_token(job_token(job.pk)) == job_from_token(job_token(str(job.pk), database="default")) == job


@pytest.mark.parametrize(
    ("by_id", "seconds", "is_named"),
    [
        (False, 0, True),
        (False, 0.002, False),
        (False, -DAY, False),
        (True, -DAY, True),
        (True, 50, True),
        (True, 70, False),
    ],
)
def test_token_names_no_job_that_gets_its_id_later(job, client, by_id, seconds, is_named):
    token = job_token(job.pk if by_id else job)
    Job.objects.filter(pk=job.pk).update(enqueued_at=job.enqueued_at + timedelta(seconds=seconds))
    assert (status_of(client, token).status_code == 200) is is_named
    if is_named:
        assert job_from_token(token) == job
    else:
        with pytest.raises(Job.DoesNotExist, match="is another one"):
            job_from_token(token)


def test_token_of_unenqueued_job_or_anonymous_user_is_refused(job):
    for wrong in (Job(task_name="x"), None, 0, -1, "", "x", "1.5", 2**63, 1.5):
        with pytest.raises(ValueError, match="needs a job that was enqueued"):
            job_token(wrong)
    for user in (AnonymousUser(), User(username="unsaved")):
        with pytest.raises(ValueError, match="needs a user with a primary key"):
            job_token(job, user=user)
    with pytest.raises(ValueError, match="no alias 'elsewhere'"):
        job_token(job.pk, database="elsewhere")


def test_token_expires(job, monkeypatch):
    token = job_token(job)
    later(monkeypatch, 100)
    assert job_from_token(token, max_age=timedelta(seconds=101)) == job
    with pytest.raises(SignatureExpired):
        job_from_token(token, max_age=99)
    later(monkeypatch, DAY)
    with pytest.raises(SignatureExpired):
        job_from_token(token)


def forged(job: Job) -> dict[str, str]:
    token, content = job_token(job), [job.pk, "default", True, None, *ANY_TIME]
    other = signing.dumps([job.pk + 1, "default", False, None, *ANY_TIME], salt="x")
    payload, _, signature = token.partition(":")
    return {
        "another salt": signing.dumps(content, salt="other"),
        "no salt": signing.dumps(content),
        "another key": signing.dumps(content, key="other", salt=SALT),
        "another job": f"{other.partition(':')[0]}:{signature}",
        "with result": f"{signing.dumps(content, salt='x').partition(':')[0]}:{signature}",
        "no signature": payload,
        "cut": token[:-1],
        "empty": "",
        "an id": str(job.pk),
        "surrogate": "\ud800:x:y",
        "unknown database": signing.dumps([job.pk, "elsewhere", False, None, *ANY_TIME], salt=SALT),
        "plain signer": signing.Signer(salt=SALT).sign_object(content),
    }


KINDS = [
    *("another salt", "no salt", "another key", "another job", "with result", "no signature", "cut", "empty"),
    *("an id", "surrogate", "unknown database", "plain signer"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_forged_token_is_refused_without_a_query(job, client, kind, django_assert_num_queries):
    assert set(forged(job)) == set(KINDS)
    token = forged(job)[kind]
    with django_assert_num_queries(0):
        with pytest.raises(BadSignature):
            job_from_token(token)
        if token.isascii() and token:
            assert status_of(client, token).status_code == 404


@given(text=st.text(max_size=60))
@example("\ud800")
@example(":::")
@example(".eJ:1:2")
def test_read_token_any_text_is_refused(text):
    with pytest.raises(BadSignature):
        read_token(text)


def test_every_changed_character_of_a_token_is_noticed(job):
    token = job_token(job, with_result=True)
    for place, character in enumerate(token):
        for other in {"A", "b", "_", ":"} - {character}:
            try:
                content = read_token(token[:place] + other + token[place + 1 :])
            except BadSignature:
                continue
            assert content == read_token(token), "the last character of base64 has bits that decode to nothing"


def test_token_of_a_user_is_refused_for_others(job):
    ada, eve = (User.objects.create_user(name) for name in ("ada", "eve"))
    token = job_token(job, user=ada)
    assert job_from_token(token, user=ada) == job
    for user in (eve, AnonymousUser(), None):
        with pytest.raises(BadSignature, match="another user"):
            job_from_token(token, user=user)
    assert job_from_token(job_token(job), user=eve) == job


def test_token_of_former_secret_key_is_accepted_as_a_fallback(job):
    with override_settings(SECRET_KEY="former"):  # noqa: S106 -- made up
        token = job_token(job)
    with pytest.raises(BadSignature):
        job_from_token(token)
    with override_settings(SECRET_KEY_FALLBACKS=["former"]):
        assert job_from_token(token) == job


def test_token_of_a_deleted_job_is_not_found(job, client):
    token = job_token(job)
    delete_all_jobs()
    with pytest.raises(Job.DoesNotExist):
        job_from_token(token)
    assert status_of(client, token).status_code == 404


# ------------------------------------------------------------------ the view


def test_view_returns_state_and_progress_in_one_query(job, client, django_assert_num_queries):
    token = job_token(job)
    with django_assert_num_queries(1):
        answer = status_of(client, token)
    assert answer.json() == {"state": "ready", "is_finished": False, "progress": None}
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Content-Type"] == "application/json"
    Job.objects.filter(pk=job.pk).update(progress_done=1.0, progress_total=4.0, progress_message="one")
    assert status_of(client, token).json()["progress"] == {
        "done": 1.0,
        "total": 4.0,
        "fraction": 0.25,
        "message": "one",
    }
    run_jobs(raising=True)
    assert status_of(client, token).json()["state"] == "succeeded"
    assert status_of(client, token).json()["is_finished"] is True


def test_view_query_uses_the_primary_key(job, client):
    with CaptureQueriesContext(connection) as queries:
        status_of(client, job_token(job, with_result=True))
    [sql] = [query["sql"] for query in queries]
    assert '"pgqueue_job"."id" = ' in sql and "LIMIT 1" in sql
    assert '"arguments"' not in sql and '"headers"' not in sql
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {sql}")
        assert "pgqueue_job_pkey" in str(cursor.fetchall())


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete", "options", "trace"])
def test_view_refuses_other_methods(job, client, method):
    answer = getattr(client, method)(f"/jobs/{job_token(job)}/")
    assert answer.status_code == 405 and answer.headers["Allow"] == "GET, HEAD"
    assert answer.headers["Cache-Control"] == "no-store"


def test_view_answers_head(job, client):
    answer = client.head(f"/jobs/{job_token(job)}/")
    assert (answer.status_code, answer.content) == (200, b"")


def test_view_refusal_says_nothing_and_is_not_stored(job, client, monkeypatch):
    token = job_token(job)
    later(monkeypatch, 61)
    assert status_of(client, token).status_code == 200
    answers = [status_of(client, token, "quick"), status_of(client, "x:y:z"), status_of(client, f"{token}x")]
    for answer in answers:
        assert (answer.status_code, answer.json()) == (404, {"error": "not found"})
        assert answer.headers["Cache-Control"] == "no-store"


def test_view_token_of_a_user_needs_that_user(job, client):
    ada, eve = (User.objects.create_user(name) for name in ("ada", "eve"))
    token = job_token(job, user=ada)
    assert status_of(client, token).status_code == 404
    client.force_login(eve)
    assert status_of(client, token).status_code == 404
    client.force_login(ada)
    assert status_of(client, token).status_code == 200


def test_view_returns_result_only_if_the_token_was_made_for_it(client):
    job = tasks.add.enqueue(2, 3)
    tokens = job_token(job), job_token(job, with_result=True)
    assert ["result" in status_of(client, token).json() for token in tokens] == [False, False]
    run_jobs(raising=True)
    assert ["result" in status_of(client, token).json() for token in tokens] == [False, True]
    assert status_of(client, tokens[1]).json()["result"] == 5


def test_view_shows_no_error_and_no_argument_of_a_dead_job(client):
    job = tasks.fail.using(max_attempts=1).enqueue(SECRET)
    run_jobs()
    answer = status_of(client, job_token(job, with_result=True))
    assert answer.json() == {"state": "dead", "is_finished": True, "progress": None}
    assert SECRET not in answer.content.decode()


def test_view_keeps_sensitive_results_back(client, monkeypatch):
    job = tasks.issue_token.enqueue(7)
    run_jobs(raising=True)
    with pytest.raises(ValueError, match="marks its result as sensitive"):
        job_token(job, with_result=True)
    token = job_token(job.pk, with_result=True)  # made before the task was changed, or with the id
    assert status_of(client, token).json() == {"state": "succeeded", "is_finished": True, "progress": None}
    unknown = tasks.add.enqueue(2, 3)
    run_jobs()
    Job.objects.filter(pk=unknown.pk).update(task_name="shop.tasks.removed")
    assert "result" not in status_of(client, job_token(unknown, with_result=True)).json()


def test_view_returns_encoded_result_decoded_or_not_at_all(client):
    with override_settings(PGQUEUE={"CODECS": ["tests.app.codecs.Hidden"]}):
        job = tasks.use_token.enqueue("order-17")
        run_jobs(raising=True)
        token = job_token(job, with_result=True)
        assert status_of(client, token).json()["result"] == "order-17 of 0"
        assert "result" not in status_of(client, job_token(job)).json()
    answer = status_of(client, token)
    assert "result" not in answer.json() and "hidden" not in answer.content.decode()


def test_view_answer_is_valid_json_whatever_the_row_contains(client):
    job = tasks.add.enqueue(2, 3)
    run_jobs(raising=True)
    Job.objects.filter(pk=job.pk).update(progress_done=float("nan"), progress_total=float("inf"))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET result = '{\"a\": 1e999}'::json")
    answer = status_of(client, job_token(job, with_result=True))
    found = json.loads(answer.content, parse_constant=lambda name: pytest.fail(name))
    assert found["progress"]["done"] is None and "result" not in found
