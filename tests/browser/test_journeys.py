"""The journeys of an operator, from the question to the answer or the act, each with and without JavaScript."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from playwright.sync_api import expect

from django_pgqueue.lifecycle import worker_requests
from django_pgqueue.models import AuditEntry, Execution, Job, LimitOverride, Pause, WorkerRequest
from django_pgqueue.testing.live_worker import LiveWorker
from example_project.library.tasks import export_library
from example_project.shop.tasks import send_confirmation

from . import seed
from .chromium import WAIT_MS

CONSOLE = "/admin/pgqueue/"


@pytest.fixture(params=["scripts", pytest.param("no scripts", marks=pytest.mark.on_demand)])
def page(request, open_context):
    """Return an empty page of an administrator, in a browser with or without JavaScript."""
    return open_context(java_script_enabled=request.param == "scripts").new_page()


@pytest.fixture
def worker(tmp_path):
    """Return a worker that the test starts. It is stopped after the test."""
    own = LiveWorker(tmp_path)
    yield own
    own.stop()


def follow(page, *names):
    """Click one link after another."""
    for name in names:
        page.locator("#content").get_by_role("link", name=name, exact=True).first.click()


def state_on(page):
    return page.locator(".pgqueue-situation")


def test_operator_retries_job_with_corrected_arguments(page):
    dead = Job.objects.get(task_name=f"{seed.SHOP}.report_day", state="dead")
    page.goto(f"{CONSOLE}deadjob/{dead.pk}/change/")
    follow(page, "Edit and retry")
    page.get_by_label("day").fill("2026-02-28")
    page.get_by_role("button", name="Enqueue as a new job").click()
    new = Job.objects.filter(task_name=dead.task_name, queue_name="default").latest("id")
    assert new.pk != dead.pk and new.arguments["args"] == ["2026-02-28"]
    expect(page.locator("#content")).to_contain_text(f"{new.pk}")
    for job in (dead, new):
        page.goto(f"{CONSOLE}job/{job.pk}/change/")
        expect(page.locator("#content")).to_contain_text("2026-02-30")
        expect(page.locator("#content")).to_contain_text("2026-02-28")
    dead.refresh_from_db()
    assert dead.state == "dead"


def test_operator_sees_jobs_of_second_database(page):
    archived = Job.objects.using("archive").create(
        task_name=f"{seed.SHOP}.report_day", queue_name="archive", arguments={"args": ["2025-12-31"], "kwargs": {}}
    )
    page.goto(f"{CONSOLE}job/")
    expect(page.locator("#result_list")).not_to_contain_text("archive")
    page.get_by_role("navigation", name="Database").get_by_role("link", name="archive").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    follow(page, f"#{archived.pk}")
    page.get_by_role("button", name="Cancel").click()
    expect(state_on(page)).to_contain_text("cancelled")
    archived.refresh_from_db()
    assert archived.state == "cancelled"


def test_operator_finds_where_job_hangs(page, worker):
    worker.start("--queues", "exports", "--concurrency", "1")
    job = export_library.using(queue_name="exports").enqueue(600.0)
    worker.wait_for(lambda: Job.objects.filter(pk=job.pk, state="running").exists())
    page.goto(f"{CONSOLE}worker/")
    page.locator("#content").get_by_role("link", name=re.compile(str(job.pk))).first.click()
    page.get_by_role("button", name="Show where it is now").click()
    expect(page.locator("#pgqueue-stack")).to_contain_text("context.lost.wait", timeout=WAIT_MS)
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Yes, stop it").click()
    worker.wait_for(lambda: Job.objects.filter(pk=job.pk, state="cancelled").exists())


@pytest.mark.promise("defect-refresh-shows-navigation")
@pytest.mark.parametrize(("name", "button"), [("job", "Show where it is now"), ("worker", "Stacks of all jobs")])
def test_answer_of_a_worker_appears_by_itself(page, name, button):
    """No worker process runs here, so the test answers. The URL of the page has a fragment."""
    execution = Execution.objects.filter(finished_at=None, worker_id=1).earliest("id")
    page.goto(f"{CONSOLE}{name}/{execution.job_id if name == 'job' else execution.worker_id}/change/")
    page.get_by_role("button", name=button).click()
    expect(page.locator("#content")).to_contain_text("Waiting for the answer")
    worker_requests.answer_request(connection, WorkerRequest.objects.latest("id").pk, 'File "shop.py", line 7')
    expect(page.locator("#content")).to_contain_text("line 7", timeout=WAIT_MS)
    expect(page.locator("#content")).to_contain_text(f"{seed.SHOP}.send_confirmation" if name == "job" else "Slots")


def test_operator_sees_why_queue_backs_up(page):
    page.goto(CONSOLE)
    page.get_by_role("link", name="Overview").first.click()
    expect(page.locator("#pgqueue-now")).to_contain_text("imports")  # no worker serves it
    page.get_by_role("navigation", name="Job queue").get_by_role("link", name="Queues").click()
    mail = page.locator("tr", has=page.get_by_role("rowheader", name="mail"))
    expect(mail).to_contain_text("2,400")
    expect(mail).to_contain_text("12 min")  # the oldest due job
    expect(mail).to_contain_text("4 / 4")  # slots
    mail.get_by_role("link", name="2,400").click()
    first = page.locator("#result_list tbody tr").first
    oldest = Job.objects.filter(queue_name="mail", state="ready").order_by("-priority", "run_after").first()
    expect(first).to_contain_text(str(oldest.pk))


def test_operator_pauses_queue_on_its_row(page):
    page.goto(f"{CONSOLE}job/queues/")
    page.get_by_role("button", name="Pause webhooks").click()
    expect(page.locator("tr", has=page.get_by_role("rowheader", name="webhooks"))).to_contain_text("paused")
    pause = Pause.objects.get(kind="queue", name="webhooks")
    assert pause.paused_by == "anna"
    page.get_by_role("button", name="Resume webhooks").click()
    expect(page.get_by_role("button", name="Pause webhooks")).to_be_visible()
    assert not Pause.objects.filter(name="webhooks").exists()


def test_operator_unblocks_limits_of_one_customer(page):
    dead = Job.objects.get(limit_key="catalogue:supplier:7", state="dead")
    page.goto(f"{CONSOLE}job/limits/")
    expect(page.locator("tr", has=page.get_by_role("rowheader", name="catalogue"))).to_contain_text("keys blocked: 1")
    follow(page, "catalogue", "supplier:7")
    blocked = page.locator("#pgqueue-limit-keys tbody").first
    expect(blocked).to_contain_text("A dead job blocks the key")
    expect(blocked).to_contain_text("14")  # jobs that wait behind it
    follow(page, f"{dead.task_name} #{dead.pk}")
    expect(page.locator(".pgqueue-failure")).to_contain_text("july.csv: line 1 has no column price")
    expect(page.locator("#content")).to_contain_text("Jobs that wait behind it: 14")
    page.go_back()
    blocked.get_by_role("button", name=f"Retry #{dead.pk}").click()
    expect(page.locator(".messagelist")).to_contain_text("1 job is ready again")
    expect(blocked).to_contain_text("The limit admits the next job")
    dead.refresh_from_db()
    assert dead.state == "ready"


def test_operator_changes_limits_and_undoes_it(page):
    page.goto(f"{CONSOLE}job/limits/")
    page.get_by_role("link", name="Change the limit… tenants").click()
    page.get_by_label("Concurrency").fill("5")
    page.get_by_label("Reason").fill("more servers")
    page.get_by_role("button", name="Change the limit").click()
    limit = page.locator("#pgqueue-limits")
    expect(limit).to_contain_text("concurrency 5 instead of 2 (more servers)")
    page.get_by_role("button", name="Undo the change tenants", exact=True).click()
    expect(limit).not_to_contain_text("instead of")
    assert not LimitOverride.objects.filter(limit_key="tenants").exists()


def test_operator_finds_jobs_of_one_order(page):
    for order_id in (4711, 4711, 4712):
        send_confirmation.enqueue(order_id)
    page.goto(f"{CONSOLE}job/")
    page.locator("#searchbar").fill("order_id:4711")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(2)
    page.locator("#result_list tbody tr").first.get_by_role("link").first.click()
    page.locator("#content").get_by_role("link", name="4711").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(2)


def test_operator_reads_why_job_does_not_start(page):
    waiting = Job.objects.filter(queue_name="imports", state="ready").first()
    page.goto(f"{CONSOLE}job/{waiting.pk}/change/")
    expect(page.locator(".pgqueue-reason")).to_contain_text("imports")
    paused = Job.objects.filter(queue_name="reports", state="ready").first()
    page.goto(f"{CONSOLE}job/{paused.pk}/change/")
    expect(page.locator(".pgqueue-reason")).to_contain_text("The warehouse is being restored")
    page.locator(".pgqueue-reason").get_by_role("link").first.click()
    expect(page.locator("#content")).to_contain_text("anna")


def test_operator_retries_only_jobs_that_died_of_one_error(page, worker):
    others = Job.objects.filter(state="dead").exclude(queue_name="webhooks").count()
    assert others
    page.goto(f"{CONSOLE}deadjob/")
    page.get_by_role("navigation", name="Job queue").get_by_role("link", name="Incidents").click()
    row = page.locator("#pgqueue-groups tr", has=page.get_by_role("rowheader", name="deliver"))
    expect(row).to_contain_text("180")
    expect(row).to_contain_text("Refused")
    row.get_by_role("link", name="deliver").click()
    group = page.locator("#pgqueue-group")
    expect(group).to_contain_text("answered 410")
    expect(group).to_contain_text("differs")
    page.get_by_role("link", name="Retry this group…").click()
    page.get_by_label("Reason").fill("The partner is back.")
    page.get_by_role("button", name="180").click()
    worker.start("--queues", "none")  # the retried jobs stay ready
    retried = Job.objects.filter(queue_name="webhooks", state="ready", attempt=0, finished_at=None)
    worker.wait_for(lambda: not Job.objects.filter(queue_name="webhooks", state="dead").exists())
    expect(page.locator("#pgqueue-bulk-act")).to_contain_text("180 of 180", timeout=WAIT_MS)
    assert retried.count() == 180 + 30  # 30 were scheduled before
    assert Job.objects.filter(state="dead").exclude(queue_name="webhooks").count() == others


def test_operator_follows_a_workflow_and_retries_its_dead_job(page):
    dead = Job.objects.get(task_name__endswith="print_invoice")
    page.goto(f"{CONSOLE}job/")
    page.get_by_role("navigation", name="Job queue").get_by_role("link", name="Batches").click()
    follow(page, "Order 4711")
    page.locator("#pgqueue-graph").get_by_role("link", name=f"print_invoice #{dead.pk}: dead").click()
    expect(page.locator(".pgqueue-failure")).to_contain_text("the customer has no address")
    page.go_back()
    page.get_by_role("link", name="Retry dead jobs…").click()
    expect(page.locator("#content")).to_contain_text("1 job meets the filter now")
    page.get_by_role("button", name="Retry: 1").click()
    expect(page.locator("#content")).to_contain_text("Retry")
    assert AuditEntry.objects.latest("pk").total == 1


def test_operator_closes_a_batch_after_a_question(page):
    page.goto(f"{CONSOLE}jobbatch/?state=open")
    follow(page, "Mails to subscribers, filled by the editors")
    page.get_by_role("link", name="Close…").click()
    page.get_by_role("button", name="Yes, close it").click()
    expect(page.locator(".messagelist")).to_contain_text("The batch is closed.")
    expect(page.get_by_role("link", name="Close…")).to_have_count(0)
