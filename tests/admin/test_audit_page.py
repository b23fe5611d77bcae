"""The filters of the page *Audit*, and what the page of a bulk retry says about the jobs that it has changed."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue.acts import AUDITED
from django_pgqueue.admin.console import act_jobs, audit_filters
from django_pgqueue.admin.console import bulk_acts as pages
from django_pgqueue.lifecycle import audit
from django_pgqueue.models import AuditEntry, Job
from tests.admin.conftest import JobMaker

pytestmark = pytest.mark.slow

JOBS = "/admin/pgqueue/job/"
AUDIT = f"{JOBS}bulk_acts/"


def add(action: str = "retry", by: str = "ada", days: int = 0) -> int:
    began_at = timezone.now() - timedelta(days=days)
    return int(AuditEntry.objects.create(action=action, done_by=by, filter={}, began_at=began_at).pk)


def page_of(client: Client, **parameters: object) -> str:
    return client.get(f"{AUDIT}?{urlencode(parameters)}").content.decode()


def listed(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'bulk_act/\?id=(\d+)">', page)]


def test_audit_filters_by_act_person_and_time(operator: Client) -> None:
    old, pause, cancel = add(days=3), add("pause_schedule", "Bob"), add("cancel")
    assert listed(page_of(operator)) == [cancel, pause, old]
    assert listed(page_of(operator, act="pause_schedule")) == [pause]
    assert listed(page_of(operator, by="bob")) == [pause]
    assert listed(page_of(operator, since="day")) == [cancel, pause]
    assert listed(page_of(operator, until=(timezone.now() - timedelta(days=1)).isoformat())) == [old]
    assert listed(page_of(operator, act="cancel", by="ada", since="hour")) == [cancel]
    for nothing in ({"act": "a\0b"}, {"by": "a\0b"}, {"act": "none"}):
        assert "No act meets the filters" in page_of(operator, **nothing)


def test_audit_form_keeps_what_was_chosen(operator: Client) -> None:
    add("cancel", "ada")
    page = page_of(operator, act="cancel", by="a<b", since="day")
    assert '<option value="cancel" selected>' in page and 'name="by" value="a&lt;b"' in page
    assert '<option value="ada">' in page and re.search(r'name="since" value="2\d{3}-', page)
    assert re.findall(r'href="([^"]*)" aria-current="true">Past 24 hours', page)
    assert "All acts" in page and "All acts" not in page_of(operator)


def test_audit_offers_every_act_once() -> None:
    assert sorted(name for _title, names in audit_filters.GROUPS for name in names) == sorted(AUDITED)


def test_audit_pages_keep_the_filters(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SHOWN", 2)
    retries = [add() for _ in range(3)]
    add("cancel")
    page = page_of(operator, act="retry", by="ada")
    assert listed(page) == retries[:0:-1]
    [older] = re.findall(r'href="([^"]+before=\d+)"', page)
    page = operator.get(unescape(older)).content.decode()
    assert listed(page) == retries[:1] and "Older acts" not in page and '<option value="retry" selected>' in page


def test_audit_with_filters_reads_a_bounded_number_of_acts(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_filters, "SEARCHED", 3)
    rare = add("delete")
    for _ in range(3):
        add()
    page = page_of(operator, act="delete")
    assert listed(page) == [] and "3 acts were searched. Older ones were not." in page
    assert "None of these acts meets the filters." in page
    [older] = re.findall(r'href="([^"]+before=\d+)"', page)
    page = operator.get(unescape(older)).content.decode()
    assert listed(page) == [rare] and "Older" not in page
    with CaptureQueriesContext(connection) as captured:
        page_of(operator, act="delete")
    [query] = [each["sql"] for each in captured if "action" in each["sql"] and "'delete'" in each["sql"]]
    assert f'"id" >= {rare + 1}' in query


# ---------------------------------------------------------------------------- what became of the jobs


def outcome(client: Client, act_id: int) -> str:
    page = client.get(f"{JOBS}bulk_act/?id={act_id}").content.decode()
    found = re.search(r'<p class="pgqueue-outcome">(.*?)</p>', page, re.DOTALL)
    return re.sub("<[^>]*>", "", found[1]) if found else ""


def test_page_of_a_retry_says_what_became_of_its_jobs(operator: Client, make_job: JobMaker) -> None:
    states = ("succeeded", "succeeded", "dead", "cancelled", "ready", "running", "waiting", "dead")
    jobs = [make_job(state, task_name="app.mail") for state in states]
    Job.objects.filter(pk=jobs[-2].pk).update(state="waiting", in_graph=True)
    chosen = {"word": "dead", "task_name": "app.mail"}
    act = audit.add_audit(connection, "retry", chosen, [job.pk for job in jobs])
    jobs[-1].delete()
    text = "2 succeeded, 1 dead again, 1 cancelled, 3 not finished, 1 no longer exists"
    assert outcome(operator, act).startswith(f"Of 8 retried jobs: {text}")
    page = operator.get(f"{JOBS}bulk_act/?id={act}").content.decode()
    links = {text: unescape(url) for url, text in re.findall(r'<a href="([^"]*)">(\d[^<]*)</a>', page)}
    assert set(links) == {"2 succeeded", "1 dead again", "1 cancelled"}
    Job.objects.filter(state__in=("succeeded", "dead", "cancelled")).update(finished_at=timezone.now())
    for text, states_listed in (("2 succeeded", jobs[:2]), ("1 dead again", jobs[2:3]), ("1 cancelled", jobs[3:4])):
        shown = operator.get(links[text]).context["cl"].result_list
        assert {job.pk for job in shown} == {job.pk for job in states_listed}, text
    assert f"#{jobs[2].pk}<" in re.findall(r"/change/[^>]*>(#\d+<)", page)[0], "dead jobs come first"


def test_page_of_a_large_retry_reads_the_newest_jobs(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [make_job("dead"), make_job("succeeded"), make_job("succeeded")]
    act = audit.add_audit(connection, "retry", {}, [job.pk for job in jobs])
    with CaptureQueriesContext(connection) as all_read:
        assert outcome(operator, act) == "Of 3 retried jobs: 2 succeeded, 1 dead again."
    monkeypatch.setattr(act_jobs, "READ", 2)
    with CaptureQueriesContext(connection) as some_read:
        assert outcome(operator, act) == "Of the newest 2 retried jobs: 2 succeeded."
    assert len(all_read) == len(some_read)


def test_page_of_another_act_says_nothing_of_outcomes(operator: Client, make_job: JobMaker) -> None:
    act = audit.add_audit(connection, "cancel", {}, [make_job("cancelled").pk])
    assert outcome(operator, act) == ""
