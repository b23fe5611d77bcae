"""The pages of bulk acts: the preview, the request, the progress with its Stop button, the audit, and the history."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from unittest import mock
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest, QueryDict
from django.test import Client
from django.utils import timezone

from django_pgqueue.admin import bulk_acts
from django_pgqueue.admin.console import bulk_acts as pages
from django_pgqueue.admin.console import bulk_preview
from django_pgqueue.admin.formatting import full_date
from django_pgqueue.declared.limit_policies import Override
from django_pgqueue.lifecycle import audit
from django_pgqueue.lifecycle import bulk_acts as lifecycle_bulk_acts
from django_pgqueue.lifecycle.bulk_acts import Selection
from django_pgqueue.models import AuditEntry, Job, Worker
from tests.admin.conftest import JobMaker, add_execution

DEAD = "/admin/pgqueue/deadjob/"
JOBS = "/admin/pgqueue/job/"
REQUEST = f"{JOBS}bulk_preview/request/"
STOP = f"{JOBS}bulk_act/stop/"


def url(action: str, **filters: str) -> str:
    """Return the URL of the preview of a bulk act, where a user can request it."""
    return f"{JOBS}bulk_preview/?{urlencode({'action': action, **filters})}"


def form(page: str) -> dict[str, str]:
    """Return the hidden fields of the form on a preview."""
    [found] = re.findall(f'<form method="post" action="{REQUEST}".*?</form>', page, re.DOTALL)
    return dict(re.findall('<input type="hidden" name="([^"]+)" value="([^"]*)">', found))


def text_of(client: Client, path: str) -> str:
    return client.get(path).content.decode()


def test_preview_counts_and_request_leads_to_the_progress(operator: Client, make_job: JobMaker) -> None:
    job, other = make_job("dead", queue_name="mail"), make_job("dead")
    for each in (job, other):
        add_execution(each, exception_class="shop.Declined")
    since = timezone.now() - timedelta(hours=1)
    page = text_of(operator, url("retry", state="dead", queue="mail", error="shop.Declined", since=since.isoformat()))
    assert "<strong>1</strong> job meets the filter now." in page
    assert f'{JOBS}{job.pk}/change/">#{job.pk}<' in page and f">#{other.pk}<" not in page
    assert "No worker is running" in page and "unique key another job has" in page
    fields = form(page)
    data = {**fields, "reason": "the bank is back", "rate": "5", "stops_on_repeat": "1"}
    answer = operator.post(REQUEST, data, follow=True)
    [entry] = AuditEntry.objects.all()
    assert answer.redirect_chain == [(f"{JOBS}bulk_act/?id={entry.pk}", 302)]
    assert (entry.action, entry.done_by, entry.reason, entry.rate) == ("retry", "staff", "the bank is back", 5.0)
    assert entry.filter == {
        "word": "dead", "queue_name": "mail", "exception_class": "shop.Declined", "since": since.isoformat()
    }  # fmt: skip
    assert entry.stops_on_repeat and (entry.total, entry.next_batch_at is not None) == (1, True)
    assert entry.previewed_at is not None and entry.previewed_at.isoformat() == fields["previewed_at"]
    assert Job.objects.get(pk=job.pk).state == "dead", "a worker does it, and the request does not"


@pytest.mark.promise("succeeded-jobs-rerun-after-confirmation")
def test_preview_of_succeeded_jobs_says_how_many_run_again(operator: Client, make_job: JobMaker) -> None:
    jobs = [make_job("succeeded") for _ in range(3)]
    data = {"action": "retry_selected", "_selected_action": [jobs[0].pk], "select_across": "1"}
    assert "3 of them have succeeded already" in operator.post(JOBS, data).content.decode()
    assert Job.objects.filter(state="succeeded").count() == 3 and not AuditEntry.objects.exists()
    Worker.objects.create(hostname="a", pid=1, concurrency=1, last_heartbeat_at=timezone.now())
    assert "No worker is running" not in text_of(operator, url("retry", state="succeeded"))


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("action=retry&state=ready", "Invalid state &#x27;ready&#x27; to retry"),
        ("action=explode&state=dead", "Invalid action &#x27;explode&#x27;"),
        ("action=retry", "Invalid state"),
        ("action=retry&ids=1,x", "invalid literal"),
        ("action=retry&state=dead&since=yesterday", "Invalid isoformat"),
        ("action=retry&state=dead&since=2026-01-01T00:00", "time zone"),
        ("action=retry&state=dead&task=%00", "NUL"),
        ("action=retry&state=dead&since=9999-12-31T23:59:59-12:00", "from 0001-01-03 to"),
        ("action=retry&state=dead&until=0001-01-01T00:00:00%2B12:00", "from 0001-01-03 to"),
        (f"action=retry&ids={2**63}", f"Invalid id {2**63}"),
    ],
)
def test_preview_of_invalid_filter_says_what_is_wrong(operator: Client, query: str, says: str) -> None:
    assert says in text_of(operator, f"{JOBS}bulk_preview/?{query}")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rate": "fast"}, "Invalid rate “fast”"),
        ({"rate": "-1"}, "Invalid rate -1.0"),
        ({"previewed_at": ""}, "Nothing was changed"),
        ({"previewed_at": "2026-01-01T00:00:00"}, "does not say when it was shown"),
        ({"state": "ready"}, "Invalid state &#x27;ready&#x27; to retry"),
        ({"form_token": "x"}, "The form was incomplete"),
    ],
)
def test_request_with_invalid_form_writes_nothing(
    operator: Client, make_job: JobMaker, changes: dict[str, str], says: str
) -> None:
    make_job("dead")
    fields = form(text_of(operator, url("retry", state="dead")))
    answer = operator.post(REQUEST, {**fields, **changes}, follow=True)
    assert says in answer.content.decode() and answer.redirect_chain[0][0].startswith(f"{JOBS}bulk_preview/?")
    assert not AuditEntry.objects.exists()


@pytest.mark.promise("bulk-act-requested-once")
def test_request_sent_twice_is_one_act(operator: Client, make_job: JobMaker) -> None:
    make_job("dead")
    fields = form(text_of(operator, url("retry", state="dead")))
    assert "sent before" not in operator.post(REQUEST, fields, follow=True).content.decode()
    entry = AuditEntry.objects.get()
    audit.stop_audit(connection, entry.pk, "ada")  # also long after the act has ended
    again = operator.post(REQUEST, {**fields, "reason": "other"}, follow=True)
    assert "This form was sent before" in again.content.decode()
    assert again.redirect_chain == [(f"{JOBS}bulk_act/?id={entry.pk}", 302)]
    assert AuditEntry.objects.get().reason == ""
    operator.post(REQUEST, form(text_of(operator, url("retry", state="dead"))))
    assert AuditEntry.objects.count() == 2, "a new form requests a new act"


def test_request_from_a_later_time_is_dated_back(operator: Client, make_job: JobMaker) -> None:
    """A forged time would include jobs that change after the request."""
    make_job("dead")
    fields = form(text_of(operator, url("retry", state="dead")))
    operator.post(REQUEST, {**fields, "previewed_at": "9000-01-01T00:00:00+00:00"})
    [entry] = AuditEntry.objects.all()
    assert entry.previewed_at == entry.began_at


def test_move_asks_for_the_queue_and_stores_it(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    make_job("ready")
    mover = client_of("view_job")
    assert mover.get(url("move", state="ready")).status_code == 403
    operator = Client()
    operator.force_login(User.objects.create_superuser("root"))
    page = text_of(operator, url("move", state="ready"))
    assert 'name="to_queue"' in page
    fields = form(page)
    assert "a b" in operator.post(REQUEST, {**fields, "to_queue": "a b"}, follow=True).content.decode()
    assert not AuditEntry.objects.exists()
    operator.post(REQUEST, {**fields, "to_queue": "mail"})
    assert AuditEntry.objects.get().filter == {"word": "ready", "to_queue": "mail"}


def test_move_to_a_mistyped_queue_is_refused_until_the_user_is_sure(
    client_of: Callable[..., Client], make_job: JobMaker
) -> None:
    """No worker serves a queue that nobody has meant, so the jobs would wait there for ever."""
    make_job(queue_name="orders")
    operator = client_of("view_job", "move_job")
    fields = {**form(text_of(operator, url("move", state="ready"))), "to_queue": "oders"}
    page = operator.post(REQUEST, fields, follow=True).content.decode()
    assert "did you mean &#x27;orders&#x27;" in page and "tick the box" in page
    assert not AuditEntry.objects.exists()
    operator.post(REQUEST, {**fields, "anyway": "1"})
    assert AuditEntry.objects.get().filter == {"word": "ready", "to_queue": "oders"}


@pytest.mark.promise("defect-refused-form-forgets")
def test_invalid_form_of_a_bulk_act_keeps_what_was_typed(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    """An operator who corrects one field must not lose the others, such as the priority and the reason."""
    make_job(queue_name="orders")
    make_job("dead")
    operator = client_of("view_job", "move_job", "erase_job", "retry_job")
    fields = form(text_of(operator, url("move", state="ready")))
    typed = {"to_queue": "oders", "to_priority": "7", "reason": 'the "shop" moved', "rate": "2.5"}
    page = operator.post(REQUEST, {**fields, **typed}, follow=True).content.decode()
    for name, value in typed.items():
        [shown] = re.findall(f'name="{name}"[^>]* value="([^"]*)"', page)
        assert unescape(shown) == value
    operator.post(REQUEST, {**form(page), **typed, "to_queue": "orders"})
    entry = AuditEntry.objects.get()
    assert (entry.filter["to_priority"], entry.reason, entry.rate) == (7, 'the "shop" moved', 2.5)

    fields = form(text_of(operator, url("erase", state="dead")))
    page = operator.post(REQUEST, {**fields, "erase_logs": "1", "rate": "x"}, follow=True).content.decode()
    assert re.findall(r'name="(erase_\w+)" value="1" checked', page) == ["erase_logs"]
    fields = form(text_of(operator, url("retry", state="dead")))
    page = operator.post(REQUEST, {**fields, "stops_on_repeat": "1", "rate": "x"}, follow=True).content.decode()
    assert 'name="stops_on_repeat" value="1" checked' in page and 'value="x"' in page


def test_move_to_a_priority_alone_is_stored(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    make_job("ready")
    operator = client_of("view_job", "move_job")
    fields = form(text_of(operator, url("move", state="ready")))
    refused = [
        ({}, "a queue, a priority or both"),
        ({"to_priority": "high"}, "“high”"),
        ({"to_priority": "101"}, "101"),
    ]
    for wrong, says in refused:
        assert says in operator.post(REQUEST, {**fields, **wrong}, follow=True).content.decode()
    assert not AuditEntry.objects.exists()
    page = operator.post(REQUEST, {**fields, "to_queue": "", "to_priority": "-7"}, follow=True).content.decode()
    assert AuditEntry.objects.get().filter == {"word": "ready", "to_priority": -7}
    assert "To priority" in page and "-7" in page


@pytest.mark.parametrize("across", ["0", "1"])
def test_move_and_deletion_of_selected_rows_show_the_preview(
    client_of: Callable[..., Client], make_job: JobMaker, across: str
) -> None:
    """Nothing is requested before the preview is answered, whatever the form says. A search finds the jobs."""
    operator = client_of("view_job", "view_arguments", "move_job", "delete_job")
    ready, dead, other = make_job(), make_job("dead"), make_job("succeeded")
    for action, job in (("move_selected", ready), ("remove_selected", dead)):
        url_of_list = JOBS if across == "0" else f"{JOBS}?q={job.pk}"
        data = {"action": action, "_selected_action": [job.pk], "select_across": across, "confirmed": "1"}
        page = operator.post(url_of_list, data).content.decode()
        fields = form(page)
        assert fields["ids"] == str(job.pk) and "<strong>1</strong> job meets the filter now." in page
        assert AuditEntry.objects.count() == (job == dead)
        operator.post(REQUEST, {**fields, "to_priority": "9"} if job == ready else fields)
        entry = AuditEntry.objects.latest("pk")
        assert (entry.action, entry.filter["job_ids"]) == ("move" if job == ready else "delete", [job.pk])
    assert Job.objects.filter(pk__in=[ready.pk, dead.pk, other.pk]).count() == 3
    assert "remove_selected" in text_of(operator, "/admin/pgqueue/deadjob/")


def test_user_without_the_permission_of_the_action_is_refused(client_of: Callable[..., Client]) -> None:
    viewer = client_of("view_job", "cancel_job")
    audit_id = audit.begin_audit(connection, "retry", {})
    assert viewer.get(url("retry", state="dead")).status_code == 403
    assert viewer.post(REQUEST, {"action": "retry", "state": "dead"}).status_code == 403
    assert viewer.post(STOP, {"id": audit_id}).status_code == 403
    page = text_of(viewer, f"{JOBS}bulk_act/?id={audit_id}")
    assert "Stop" not in page and ' aria-current="page">Audit<' in page
    assert [viewer.get(path).status_code for path in (REQUEST, STOP)] == [405, 405]
    assert viewer.get(f"{JOBS}bulk_act/?id={audit_id + 1}").status_code == 404
    assert viewer.get(f"{JOBS}bulk_act/?id=%00").status_code == 404


def test_progress_refreshes_while_it_runs_and_can_be_stopped(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    at = lifecycle_bulk_acts.preview(connection, "retry", Selection("dead")).at
    audit_id = lifecycle_bulk_acts.request_act(connection, "retry", Selection("dead"), previewed_at=at, total=1)
    page = f"{JOBS}bulk_act/?id={audit_id}"
    text = text_of(operator, page)
    assert "waiting for a worker" in text and '<noscript><meta http-equiv="refresh"' in text
    assert 'data-live="3"' in text and "No worker is running" in text and ">Stop</button>" in text
    stopped = operator.post(STOP, {"id": audit_id}, follow=True)
    assert stopped.redirect_chain == [(page, 302)]
    text = stopped.content.decode()
    assert "stopped by staff" in text and "http-equiv" not in text and ">Stop</button>" not in text
    assert "Nothing to stop" in operator.post(STOP, {"id": audit_id}, follow=True).content.decode()
    assert Job.objects.get(pk=job.pk).state == "dead"


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"outcome": "done", "ended_at": timezone.now()}, "done"),
        ({"outcome": "failed", "error": "not <b>this", "ended_at": timezone.now()}, "failed: not &lt;b&gt;this"),
        (
            {"outcome": "repeated", "failed_job_id": 7, "error": "shop.E"},
            "stopped, because job #7 failed again with shop.E",
        ),
        ({"next_batch_at": timezone.now(), "cursor": [1]}, "running"),
        ({"filter": {"nonsense": 1}, "action": "<i>"}, "under way elsewhere, or interrupted"),
        ({"filter": {"since": "9999-12-31T23:59:59-12:00"}}, "under way elsewhere, or interrupted"),
    ],
)
def test_audit_lists_each_act_and_how_it_ended(operator: Client, columns: dict[str, Any], says: str) -> None:
    AuditEntry.objects.create(**{"action": "retry", "done_by": "ada", "filter": {"tasks": ["a"]}, **columns})
    text = text_of(operator, f"{JOBS}bulk_acts/")
    assert f'<td data-label="Ended">{says}' in text and ">ada" in text and "<i>" not in text
    assert text_of(operator, f"{JOBS}bulk_act/?id={AuditEntry.objects.get().pk}")


def test_audit_shows_only_times_as_dates() -> None:
    shown = dict(bulk_acts.described(HttpRequest(), {"queue_name": "20261122", "since": "2026-11-22T08:00:00+00:00"}))
    assert shown == {"Queue": "20261122", "Since": full_date(datetime(2026, 11, 22, 8, tzinfo=UTC))}


def test_audit_shows_the_end_of_an_override_as_a_date(settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    chosen = {"before": {"rate": "20261122"}, "after": {"rate": "9/m", "until": "2026-11-22T20:00+00:00"}}
    shown = dict(bulk_acts.described(HttpRequest(), chosen))
    assert shown == {"Before": "rate 20261122", "After": "rate 9/m, until 2026-11-23 05:00:00"}


def test_audit_names_the_values_of_an_override_in_the_language_of_the_user() -> None:
    assert {*bulk_acts.VALUES} == {*Override._fields, "until", "since", "by"}, "a value has no word"
    with mock.patch.dict(bulk_acts.VALUES, concurrency="Gleichzeitige"):
        shown = bulk_acts.described(HttpRequest(), {"before": {"concurrency": 2, "own\u202e": 3}})
    assert [text for _name, text in shown] == ["Gleichzeitige 2, own\\u202e 3"]


def test_audit_continues_on_older_pages(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SHOWN", 2)
    assert "No operator has acted" in text_of(operator, f"{JOBS}bulk_acts/")
    for name in ("ada", "bob", "cy"):
        AuditEntry.objects.create(action="retry", done_by=name, filter={})
    text = text_of(operator, f"{JOBS}bulk_acts/")
    assert ">cy" in text and ">bob" in text and ">ada" not in text
    [older] = re.findall(r'href="([^"]+before=\d+)"', text)
    assert ">ada" in text_of(operator, older) and "Older acts" not in text_of(operator, older)


@pytest.mark.parametrize("sees_arguments", [True, False])
def test_history_of_a_job_shows_its_acts(
    client_of: Callable[..., Client], make_job: JobMaker, sees_arguments: bool
) -> None:
    job, other = make_job("dead"), make_job("dead")
    detail = {job.pk: {"changes": {"amount": ["secret 1", "secret 2"]}}}
    audit.add_audit(connection, "retry", {}, [job.pk, other.pk], done_by="ada", reason="why not", details=detail)
    audit.add_audit(connection, "cancel", {}, [other.pk], done_by="bob")
    client = client_of("view_job", *(["view_arguments"] if sees_arguments else []))
    text = text_of(client, f"{JOBS}{job.pk}/history/")
    assert ">ada" in text and "why not" in text and ">bob" not in text
    assert ("secret 1" in text) is sees_arguments and ("Hidden: you do not" in text) is not sees_arguments
    assert text_of(client, f"{DEAD}{other.pk}/history/").count('<th scope="row"><a href=') == 2


def test_select_all_of_a_list_leads_to_the_preview_of_its_filter(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead", queue_name="mail", task_name="shop.charge")
    make_job("dead")
    data = {"action": "retry_selected", "_selected_action": [job.pk], "select_across": "1"}
    page = operator.post(f"{DEAD}?queue=mail&task=shop.charge&since=day", data).content.decode()
    fields = form(page)
    assert (fields["state"], fields["queue"], fields["task"]) == ("dead", "mail", "shop.charge")
    assert "since" in fields and fields["total"] == "1"
    assert Job.objects.filter(state="dead").count() == 2, "nothing is changed before the confirmation"


ACTS = ("retry_job", "cancel_job", "run_job", "move_job", "delete_job")


@pytest.mark.parametrize(
    ("path", "names", "selection"),
    [
        (f"{JOBS}?state=ready&queue=mail", ["Cancel", "Run now", "Move"], Selection("ready", "mail")),
        (f"{JOBS}?state=succeeded&task=app.add", ["Retry", "Delete"], Selection("succeeded", None, "app.add")),
        (f"{DEAD}?error=shop.E&queue=mail", ["Retry", "Delete"], Selection("dead", "mail", None, "shop.E")),
        (f"{JOBS}?queue=mail", [], None),
        (f"{JOBS}?state=dead&queue=none", [], None),
    ],
)
def test_lists_link_the_previews_of_what_they_show(
    client_of: Callable[..., Client], make_job: JobMaker, path: str, names: list[str], selection: Selection | None
) -> None:
    for state in ("ready", "succeeded", "dead"):
        job = make_job(state, queue_name="mail", run_after=timezone.now() + timedelta(hours=1))
    add_execution(job, exception_class="shop.E")
    client = client_of("view_job", *ACTS)
    text = text_of(client, path)
    links = re.findall(rf'<li><a href="({JOBS}bulk_preview/[^"]+)">([^<]+)…</a></li>', text)
    assert [name for _url, name in links] == names
    for link, name in links:
        query = QueryDict(unescape(link).partition("?")[2])
        assert bulk_acts.label(query["action"]) == name
        assert name == "Run now" or bulk_acts.selection_of(query) == selection
    if links:
        assert "<strong>1</strong> job meets" in text_of(client, unescape(links[-1][0]))


def test_list_links_only_the_acts_that_the_user_may_request(
    client_of: Callable[..., Client], make_job: JobMaker
) -> None:
    make_job("dead")
    text = text_of(client_of("view_job", "retry_job", "move_job"), DEAD)
    assert re.findall(r"bulk_preview/\?action=(\w+)", text) == ["retry"]


def test_select_all_of_another_list_sends_the_numbers(operator: Client, make_job: JobMaker) -> None:
    dead, ready, _ = make_job("dead"), make_job("ready"), make_job("dead", task_name="app.other")
    data = {"action": "retry_selected", "_selected_action": [dead.pk], "select_across": "1"}
    page = operator.post(f"{JOBS}?q=app.add", data).content.decode()
    assert form(page)["ids"] == f"{ready.pk},{dead.pk}" and "1 listed job:" in page
    operator.post(REQUEST, form(page))
    assert AuditEntry.objects.get().filter == {"job_ids": [ready.pk, dead.pk]}


@pytest.mark.parametrize("query", ["q=app.pruned", "state=dead&queue=%00"])
def test_select_all_of_a_list_that_is_empty_by_now_changes_nothing(
    operator: Client, make_job: JobMaker, query: str
) -> None:
    data = {"action": "retry_selected", "_selected_action": [make_job("dead").pk], "select_across": "1"}
    answer = operator.post(f"{JOBS}?{query}", data, follow=True)
    assert "Nothing was changed: the list is empty now." in answer.content.decode()


@pytest.mark.parametrize(
    ("action", "query", "expected"),
    [
        ("retry", "state=dead&queue=mail", Selection("dead", "mail")),
        ("cancel", "state=due&task=a", Selection("due", None, "a")),
        ("run_now", "state=ready", Selection("scheduled")),
        ("cancel", "state=ready&limit=import:7&queue=a", Selection("ready", "a", limit_key="import:7")),
        ("retry", "state=dead&limit=import", Selection("dead", limit_key="import")),
        ("retry", "state=ready", None),
        ("retry", "state=dead&error=shop.Declined", Selection("dead", None, None, "shop.Declined")),
        ("retry", "state=dead&error=Declined", None),
        ("cancel", "state=paused", None),
        ("retry", "state=dead&q=app", None),
        ("retry", "state=dead&id__in=1", None),
        ("retry", "", None),
    ],
)
def test_filter_of_a_list_is_kept_only_if_a_bulk_act_has_it(
    action: str, query: str, expected: Selection | None
) -> None:
    assert bulk_acts.of_list(action, QueryDict(query), timezone.now(), is_dead_only=False) == expected


def test_preview_url_and_its_parameters_describe_the_same_jobs() -> None:
    at = timezone.now()
    chosen = Selection("dead", "mail", "shop.charge", "", since=at, until=at)
    link = url("retry", **bulk_acts.parameters(chosen))
    assert bulk_acts.selection_of(QueryDict(link.partition("?")[2])) == chosen
    listed = QueryDict(url("cancel", ids="1,2").partition("?")[2])
    assert bulk_acts.selection_of(listed) == Selection(job_ids=(1, 2))


def test_stop_at_first_repeat_has_a_careful_rate(operator: Client, make_job: JobMaker) -> None:
    make_job("dead")
    fields = form(text_of(operator, url("retry", state="dead")))
    operator.post(REQUEST, {**fields, "stops_on_repeat": "1"})
    assert AuditEntry.objects.get().rate == bulk_preview.CAREFUL_RATE
