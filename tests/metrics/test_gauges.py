"""Test the gauges of the queue: what they show, their text, and the view that serves them."""

import logging
import threading
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.db import OperationalError
from django.test import RequestFactory

from django_pgqueue import Limit, stats
from django_pgqueue.ground import prometheus
from django_pgqueue.lifecycle import pauses
from django_pgqueue.metrics import collect, gauges, metrics_view, render, view
from django_pgqueue.states import Pausable
from django_pgqueue.stats import depths
from django_pgqueue.stats.limits import bounds
from django_pgqueue.tasks import registry
from tests import helpers
from tests.stats.conftest import add_worker as add_worker
from tests.stats.conftest import connection as connection
from tests.stats.limited_jobs import add as add_limited
from tests.stats.limited_jobs import claim as claim_limited
from tests.stats.limited_jobs import throttle

TOKEN = "0123456789abcdef"


def readings():
    return {gauge.name: dict(samples) for gauge, samples in collect()}


def shift(connection, statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def mail(connection, add_worker):
    """Put three due jobs, of which one has waited for 90 s, and a scheduled one into the queue `mail`."""
    add_worker("mail", concurrency=4)
    helpers.make_jobs(connection, 3, queue_name="mail")
    helpers.make_jobs(connection, 1, queue_name="mail", delay_seconds=3600.0)
    shift(
        connection,
        "UPDATE pgqueue_job SET run_after = run_after - interval '90 s' WHERE id = (SELECT min(id) FROM pgqueue_job)",
    )


def test_gauges_show_jobs_workers_and_age_by_queue(connection, mail):
    found = readings()
    states = {state: value for (queue, state), value in found["pgqueue_jobs"].items() if queue == "mail" and value}
    assert states == {"due": 3, "scheduled": 1}
    assert 90 <= found["pgqueue_oldest_due_seconds"]["mail",] < 100
    assert found["pgqueue_queue_workers"]["mail",] == found["pgqueue_live_workers"][()] == 1
    assert (found["pgqueue_queue_slots"]["mail",], found["pgqueue_queue_slots_busy"]["mail",]) == (4, 0)
    assert found["pgqueue_enqueued_per_minute"]["mail",] == 4
    assert found["pgqueue_database_up"][()] == 1
    assert (found["pgqueue_oldest_due_seconds"]["default",], found["pgqueue_queue_workers"]["default",]) == (0, 0)
    assert set(found) == {gauge.name for gauge, _ in gauges.READS}


def test_gauges_count_held_and_unknown_jobs_apart(connection):
    add_limited("nobody", 2)
    helpers.make_jobs(connection, 3, delay_seconds=15.0)
    shift(connection, "UPDATE pgqueue_job SET unknown_since = now() WHERE limit_key IS NULL")
    found = readings()
    states = {state: value for (_, state), value in found["pgqueue_jobs"].items() if value}
    assert states == {"held": 2, "unknown": 3}
    assert found["pgqueue_oldest_due_seconds"]["default",] == 0
    assert set(found["pgqueue_jobs_capped"].values()) == {0}


def test_gauge_says_whether_the_rate_of_new_jobs_is_an_estimate(connection, mail, monkeypatch):
    assert set(readings()["pgqueue_enqueued_estimated"].values()) == {0}
    monkeypatch.setattr(depths, "ENQUEUED_LIMIT", 2)
    found = readings()
    assert found["pgqueue_enqueued_estimated"]["mail",] == 1
    assert found["pgqueue_enqueued_per_minute"]["mail",] == 4


def test_gauges_count_prefetched_jobs_apart_from_running_ones(connection, add_worker):
    worker_id = add_worker("mail", concurrency=1)
    helpers.make_jobs(connection, 3, queue_name="mail")
    helpers.claim_all(connection, helpers.Lane("mail", 0), worker_id=worker_id, free_slots=1)
    found = readings()
    assert (found["pgqueue_jobs"]["mail", "running"], found["pgqueue_jobs"]["mail", "prefetched"]) == (1, 2)
    assert found["pgqueue_queue_slots_busy"]["mail",] == 1


def test_gauges_of_paused_queue_show_the_pause_and_no_age(connection, mail):
    pauses.pause(connection, Pausable.QUEUE, "mail")
    found = readings()
    assert found["pgqueue_queue_paused"]["mail",] == 1
    assert (found["pgqueue_jobs"]["mail", "paused"], found["pgqueue_jobs"]["mail", "due"]) == (3, 0)
    assert found["pgqueue_oldest_due_seconds"]["mail",] == 0


@pytest.mark.promise("gauges-bounded")
def test_gauges_count_queues_beyond_the_limit_together(connection, mail, monkeypatch):
    monkeypatch.setattr(gauges, "QUEUES_LIMIT", 1)
    helpers.make_jobs(connection, 2, queue_name="other")
    helpers.make_jobs(connection, 1, queue_name="aaa")
    found = readings()
    assert {queue for queue, _ in found["pgqueue_jobs"]} == {"aaa", "other"}
    assert found["pgqueue_jobs"]["other", "due"] == 5
    assert 90 <= found["pgqueue_oldest_due_seconds"]["other",] < 100
    assert set(found["pgqueue_queue_workers"]) == {("aaa",)}


def test_gauges_queue_named_other_has_no_second_series(connection, monkeypatch):
    for queue in ("other", "zzy", "zzz"):
        helpers.make_jobs(connection, 1, queue_name=queue)
    monkeypatch.setattr(gauges, "QUEUES_LIMIT", len(stats.queues()) - 1)
    [samples] = [samples for gauge, samples in collect() if gauge.name == "pgqueue_jobs"]
    assert [value for labels, value in samples if labels == ("other", "due")] == [1]
    assert ("zzz", "due") in dict(samples)


@pytest.mark.promise("gauges-bounded")
def test_gauges_of_capped_count_say_so(connection, mail, monkeypatch):
    assert readings()["pgqueue_jobs_capped"]["mail", "due"] == 0
    monkeypatch.setattr(depths, "COUNT_LIMIT", 2)
    found = readings()
    assert (found["pgqueue_jobs"]["mail", "due"], found["pgqueue_jobs_capped"]["mail", "due"]) == (2, 1)


LIMITS = {name: Limit(name, key="{key}", concurrency=1) for name in ("exports", "imports", "other")}


def of_limits():
    return {name: samples for name, samples in readings().items() if name.startswith("pgqueue_limit_")}


@pytest.mark.promise("limit-gauges-bounded")
def test_gauges_show_the_limits_that_tasks_declare(connection, monkeypatch):
    monkeypatch.setattr(registry, "_limits", LIMITS)
    for key, delay in (
        ("imports:1", -90.0),
        ("imports:1", 0.0),
        ("imports:2", 3600.0),
        ("gone:1", -30.0),
        ("old:1", -30.0),
    ):
        add_limited(key, delay=delay)
    found = of_limits()
    assert found["pgqueue_limit_jobs"]["imports", "due"] == 2
    assert found["pgqueue_limit_jobs"]["imports", "scheduled"] == 1
    assert (found["pgqueue_limit_keys"]["imports",], found["pgqueue_limit_keys"]["exports",]) == (2, 0)
    assert 90 <= found["pgqueue_limit_oldest_due_seconds"]["imports",] < 100
    assert found["pgqueue_limit_jobs_capped"]["imports",] == 0
    assert set(found["pgqueue_limit_keys"]) == {("exports",), ("imports",), ("other",)}
    assert found["pgqueue_limit_keys"]["other",] == 2, "the limits that no task declares"
    assert 30 <= found["pgqueue_limit_oldest_due_seconds"]["other",] < 40


def test_gauges_show_running_weights_and_held_keys(connection, monkeypatch):
    monkeypatch.setattr(registry, "_limits", {"imports": Limit("imports", key="{key}", concurrency=9)})
    add_limited("imports:1", limit_weight=4)
    add_limited("imports:2", limit_weight=3)
    [first] = claim_limited("imports:1")
    claim_limited("imports:2")
    throttle(first, 60.0)
    found = of_limits()
    assert found["pgqueue_limit_running_weight"] == {("imports",): 3}
    assert found["pgqueue_limit_keys_held"] == {("imports",): 1}


@pytest.mark.promise("limit-gauges-bounded")
def test_gauges_of_limits_beyond_a_bound_are_summed_up(connection, monkeypatch):
    monkeypatch.setattr(registry, "_limits", LIMITS)
    monkeypatch.setattr(gauges, "LIMITS_LIMIT", 1)
    monkeypatch.setattr(bounds, "JOBS_LIMIT", 2)
    add_limited("imports:1", 5)
    add_limited("exports:1")
    found = of_limits()
    assert set(found["pgqueue_limit_keys"]) == {("exports",), ("other",)}
    assert found["pgqueue_limit_jobs_capped"] == {("exports",): 0, ("other",): 1}


def test_gauges_without_a_declared_limit_read_nothing_about_limits(connection, monkeypatch):
    monkeypatch.setattr(registry, "_limits", {})
    monkeypatch.setattr(stats, "limits", None)
    assert set(map(len, of_limits().values())) == {0}


def test_gauges_without_statistics_have_no_finished_jobs(mail, settings):
    assert "mail" in {queue for (queue,) in readings()["pgqueue_finished_per_minute"]}
    settings.PGQUEUE = {"STATS": False}
    assert readings()["pgqueue_finished_per_minute"] == {}


def test_gauge_of_late_schedule_has_its_lag_without_jitter(connection):
    assert readings()["pgqueue_schedules_late_seconds"][()] == 0
    insert = (
        "INSERT INTO pgqueue_schedule (name, task_name, arguments, expression, next_run_at, jitter_seconds, enabled) "
        "VALUES (%s, 'a.b', '[[], {}]', 'every 1h', now() + %s::interval, %s, %s)"
    )
    rows = [("late", "-90 s", 30, True), ("later", "60 s", 0, True), ("off", "-1 day", 0, False)]
    with connection.cursor() as cursor:
        cursor.executemany(insert, rows)
        cursor.execute(insert, ("paused", "-1 day", 0, True))
        cursor.execute("UPDATE pgqueue_schedule SET paused_until = now() + '1 h' WHERE name = 'paused'")
    assert 60 <= readings()["pgqueue_schedules_late_seconds"][()] < 70


def test_text_escapes_the_names_of_queues(connection):
    helpers.make_jobs(connection, 1, queue_name='a"\\\nb')
    text = render(collect())
    assert '\npgqueue_jobs{queue="a\\"\\\\\\nb",state="due"} 1.0\n' in text
    assert "# HELP pgqueue_jobs Jobs by state.\n# TYPE pgqueue_jobs gauge\n" in text
    assert text.startswith("# HELP pgqueue_database_up ")
    assert "\npgqueue_database_up 1.0\n" in text


def test_text_is_what_the_prometheus_client_reads(mail):
    parser = pytest.importorskip("prometheus_client.parser")
    before = collect()
    read = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(render(before))
        for sample in family.samples
    }
    assert read == {(gauge.name, *labels): value for gauge, samples in before for labels, value in samples}


# ------------------------------------------------------------------ the database


@pytest.mark.promise("gauges-read-only")
def test_collect_is_read_only_with_a_time_limit(connection, monkeypatch):
    seen = {}

    def current(database, figures):
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('transaction_read_only'), current_setting('statement_timeout')")
            seen["settings"] = cursor.fetchone()
        return original(database, figures)

    original = gauges.current
    monkeypatch.setattr(gauges, "current", current)
    collect()
    assert seen["settings"] == ("on", "2s")
    helpers.make_jobs(connection, 1)  # the caller's transaction can write again


def test_collect_during_outage_has_only_database_up(db, monkeypatch, caplog):
    def fail(connection, figures):
        raise OperationalError("server closed the connection\nmore")

    monkeypatch.setattr(gauges, "Snapshot", fail)
    with caplog.at_level(logging.WARNING, "django_pgqueue.metrics"):
        assert readings() == {"pgqueue_database_up": {(): 0}}
    assert caplog.messages == ["the figures of the database 'default' could not be read: server closed the connection"]
    monkeypatch.undo()
    assert readings()["pgqueue_database_up"] == {(): 1}


# ------------------------------------------------------------------ the view


@pytest.fixture
def calls(monkeypatch, settings):
    """Set a token, replace the reading of the database, and return the list of the aliases that were read."""
    calls = []
    settings.PGQUEUE = {"METRICS_TOKEN": TOKEN}
    monkeypatch.setattr(view, "collect", lambda alias: calls.append(alias) or [])
    view.figures.clear()
    yield calls
    view.figures.clear()


def get(token=None, user=None, method="get"):
    headers = {"Authorization": token} if token is not None else {}
    request = getattr(RequestFactory(), method)("/", headers=headers)
    request.user = user or AnonymousUser()
    return metrics_view(request)


@pytest.mark.promise("metrics-view-protected")
@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", "Bearer é", f"Basic {TOKEN}", TOKEN, "Bearer None"]
)
def test_metrics_view_wrong_token_is_refused(calls, header):
    response = get(header)
    assert (response.status_code, response["WWW-Authenticate"], calls) == (401, "Bearer", [])
    assert TOKEN not in response.text


@pytest.mark.promise("metrics-view-protected")
def test_metrics_view_without_setting_accepts_no_token(calls, settings):
    settings.PGQUEUE = {}
    assert [get(f"Bearer {token}").status_code for token in ("None", "", TOKEN)] == [401] * 3
    assert calls == []


@pytest.mark.promise("metrics-view-protected")
def test_metrics_view_user_needs_staff_and_permission(db, calls):
    permission = Permission.objects.get(content_type__app_label="pgqueue", codename="view_job")

    def status(name, *, may_view, **changes):
        user = User.objects.create(username=name, **changes)
        if may_view:
            user.user_permissions.add(permission)
        return get(user=user).status_code

    assert status("a", is_staff=True, may_view=False) == 401
    assert status("b", is_staff=False, may_view=True) == 401
    assert status("c", is_staff=True, is_active=False, may_view=True) == 401
    allowed_by_backend = SimpleNamespace(is_active=False, is_staff=True, has_perm=lambda permission: True)
    assert get(user=allowed_by_backend).status_code == 401
    assert calls == []
    assert status("d", is_staff=True, may_view=True) == 200


def test_metrics_view_serves_the_text_of_the_gauges(mail, settings):
    settings.PGQUEUE = {"METRICS_TOKEN": TOKEN}
    view.figures.clear()
    try:
        response = get(f"bearer {TOKEN}")
    finally:
        view.figures.clear()
    assert (response.status_code, response["Cache-Control"]) == (200, "no-store")
    assert response["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert '\npgqueue_jobs{queue="mail",state="due"} 3.0\n' in response.text


@pytest.mark.promise("metrics-view-cached")
def test_metrics_view_reads_the_database_once_in_5_seconds(calls, monkeypatch):
    now = 100.0
    monkeypatch.setattr(prometheus.time, "monotonic", lambda: now)
    for _ in range(3):
        assert get(f"Bearer {TOKEN}").status_code == 200
    now = 104.9
    get(f"Bearer {TOKEN}")
    assert calls == ["default"]
    now = 105.0
    get(f"Bearer {TOKEN}")
    assert calls == ["default"] * 2


def test_metrics_view_first_requests_at_once_share_a_read(calls, monkeypatch):
    both, made = threading.Barrier(2, timeout=10.0), []

    def fresh(*args):
        both.wait()
        return prometheus.Fresh(*args)

    monkeypatch.setattr(view, "Fresh", fresh)
    threads = [threading.Thread(target=lambda: made.append(view.figures_of("default"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert made[0] is made[1]


def test_metrics_view_refuses_other_methods_and_needs_no_transaction(calls):
    assert get(f"Bearer {TOKEN}", method="post").status_code == 405
    assert metrics_view._non_atomic_requests == {"default"}
