"""The admin finds jobs by their search keys, and the page of a job links to this search."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue.admin import search_keys
from django_pgqueue.lifecycle import search_keys as lifecycle_search_keys
from django_pgqueue.models import AuditEntry, Job
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests.admin.conftest import JobMaker, add_execution
from tests.admin.test_bulk_acts import REQUEST
from tests.admin.test_bulk_acts import form as bulk_form
from tests.admin.test_lists import plans
from tests.app import tasks

SELECTED = re.compile(r'name="_selected_action" value="(\d+)"')
JOBS, DEAD = "/admin/pgqueue/job/", "/admin/pgqueue/deadjob/"


@pytest.fixture
def bill(monkeypatch: pytest.MonkeyPatch) -> Task[..., Any]:
    """Register a task whose jobs have the search key `a`."""
    made: Task[..., Any] = Task(func=tasks.plus.func, name=tasks.plus.name, search=("a", "b"))
    monkeypatch.setitem(registry._tasks, made.name, made)
    return made


def acts_of(client: Client, url: str, **parameters: str) -> dict[str, str]:
    """Return the URLs of the acts on all jobs of a list, by their names."""
    return {str(name): link for name, link in client.get(url, parameters).context["bulk_acts"]}


def found(client: Client, term: str, url: str = JOBS, **filters: str) -> list[int]:
    """Return the ids of the jobs in the list."""
    return [job.pk for job in client.get(url, {"q": term, **filters}).context["cl"].result_list]


def notes_of(client: Client, term: str, url: str = JOBS, **filters: str) -> str:
    """Return the line below the list, and the sentence that stands instead of an empty list."""
    text = client.get(url, {"q": term, **filters}).content.decode()
    return unescape(" ".join(re.findall(r'<p class="pgqueue-(?:bounded|empty)">(.*?)</p>', text)))


def test_search_finds_jobs_by_key_in_both_lists(operator: Client, bill: Any, make_job: JobMaker) -> None:
    first, other, second = bill.enqueue(4711), bill.enqueue(4712), bill.enqueue(b=1, a="4711")
    dead = make_job("dead", task_name=bill.name)
    lifecycle_search_keys.add_search_keys(connection, {dead.pk: {"a": "4711"}})
    assert found(operator, "a:4711") == [dead.pk, second.pk, first.pk]
    assert found(operator, " a: 4712 ") == [other.pk]
    assert found(operator, "b:1") == [second.pk]
    assert found(operator, "a:47") == []
    assert found(operator, "a:4711", DEAD) == [dead.pk]
    for url in (JOBS, DEAD):
        assert "customer_id:4711" in operator.get(url).content.decode()


def test_search_by_key_and_word_finds_jobs_with_that_word(operator: Client, one_of_each: dict[str, Job]) -> None:
    lifecycle_search_keys.add_search_keys(connection, {job.pk: {"a": "4711"} for job in one_of_each.values()})
    for word, job in one_of_each.items():
        in_state = ("cancelling", "lost", "running") if word == "running" else (word,)
        expected = [one_of_each[each].pk for each in in_state]
        text = operator.get(JOBS, {"q": "a:4711", "state": word}).content.decode()
        assert [int(number) for number in SELECTED.findall(text)] == expected, (word, job)


def test_search_of_task_name_with_colon_finds_its_jobs(operator: Client, bill: Any, make_job: JobMaker) -> None:
    job = make_job(task_name="shop:send")
    assert found(operator, "shop:send") == [job.pk]
    lifecycle_search_keys.add_search_keys(connection, {job.pk: {"shop": "send"}})
    assert found(operator, "shop:send") == [job.pk], "a key of a task that this process does not know"


def test_search_more_jobs_than_the_limit_says_so(operator: Client, bill: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = bill.enqueue_many([(1,)] * 3)
    assert notes_of(operator, "a:1") == "exact · newest first"
    monkeypatch.setattr(search_keys, "FOUND_LIMIT", 2)
    assert found(operator, "a:1") == [ids[2], ids[1]]
    for term in ("a:1", "1"):
        assert found(operator, term)[:2] == [ids[2], ids[1]]
        assert "among the newest 2 jobs with this value" in notes_of(operator, term), term
        assert "exact" not in notes_of(operator, term)


def test_search_counts_jobs_and_not_keys(operator: Client, bill: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = bill.enqueue_many([("red", "red")] * 2)
    monkeypatch.setattr(search_keys, "FOUND_LIMIT", 2)
    assert found(operator, "red") == ids[::-1]
    assert "among the newest" not in notes_of(operator, "red")


def test_search_shows_no_trace_of_hidden_jobs(
    operator: Client, bill: Any, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden jobs are newer than the visible one: they neither take its place nor count."""
    hiding: Task[..., Any] = Task(
        func=tasks.plus.func, name="shop.hide", aliases=("shop.old",), sensitive=frozenset({"a"})
    )
    monkeypatch.setitem(registry._tasks, hiding.name, hiding)
    visible = bill.enqueue("red")
    before = notes_of(operator, "a:red"), notes_of(operator, "red")
    monkeypatch.setattr(search_keys, "FOUND_LIMIT", 1)
    for name in ("shop.hide", "shop.old"):
        lifecycle_search_keys.add_search_keys(connection, {make_job(task_name=name).pk: {"a": "red"}})
    assert found(operator, "a:red") == found(operator, "red") == [visible.pk]
    assert (notes_of(operator, "a:red"), notes_of(operator, "red")) == before


def test_search_meets_every_filter_of_the_list(operator: Client, bill: Any, make_job: JobMaker) -> None:
    """An act on "all jobs that the list shows" would take the others too."""
    now = timezone.now()
    old, other_error, new = (
        make_job("dead", task_name=bill.name, queue_name=queue, enqueued_at=now - timedelta(days=4))
        for queue in ("mail", "mail", "default")
    )
    Job.objects.filter(pk=old.pk).update(finished_at=now - timedelta(days=3))
    for job, name in ((old, "shop.Timeout"), (other_error, "shop.Refused"), (new, "shop.Timeout")):
        add_execution(job, exception_class=name)
    lifecycle_search_keys.add_search_keys(connection, {job.pk: {"a": "red"} for job in (old, other_error, new)})
    for term in ("a:red", "red"):
        assert found(operator, term, DEAD, since="day", error="shop.Timeout") == [new.pk]
        assert found(operator, term, DEAD, until="day") == [old.pk]
        assert found(operator, term, DEAD, error="shop.Timeout") == [new.pk, old.pk]
        assert found(operator, term, DEAD, error="shop.Timeout", queue="mail") == [old.pk]
    running, succeeded = make_job("running"), make_job("succeeded")
    assert found(operator, str(succeeded.pk), state="running") == []
    assert found(operator, str(running.pk), state="running") == [running.pk]


def test_acts_of_a_search_take_exactly_the_jobs_found(operator: Client, bill: Any, make_job: JobMaker) -> None:
    wanted = [bill.enqueue(4711) for _ in range(2)]
    bill.enqueue(4712)
    dead = make_job("dead", task_name=bill.name)
    lifecycle_search_keys.add_search_keys(connection, {dead.pk: {"a": "4711"}})
    acts = acts_of(operator, JOBS, q="a:4711")
    assert list(acts) == ["Retry", "Cancel", "Run now"]
    preview = operator.get(acts["Cancel"])
    assert preview.context["preview"].chosen == 2 and preview.context["preview"].left == 1
    fields = bulk_form(preview.content.decode())
    assert sorted(fields["ids"].split(",")) == sorted(str(job.pk) for job in (*wanted, dead))
    again = operator.post(REQUEST, {**fields, "rate": "fast", "reason": "why"}, follow=True)
    assert "Invalid rate" in again.content.decode() and again.context["preview"].chosen == 2
    operator.post(REQUEST, fields)
    assert sorted(AuditEntry.objects.get().filter["job_ids"]) == sorted(job.pk for job in (*wanted, dead))


def test_acts_of_a_search_keep_the_filters_of_the_list(operator: Client, bill: Any, make_job: JobMaker) -> None:
    dead, other = (make_job("dead", task_name=bill.name, queue_name=queue) for queue in ("mail", "default"))
    lifecycle_search_keys.add_search_keys(connection, {job.pk: {"a": "4711"} for job in (dead, other)})
    bill.enqueue(4711)
    for url, filters in ((DEAD, {}), (JOBS, {"state": "dead"})):
        acts = acts_of(operator, url, q="a:4711", queue="mail", **filters)
        assert list(acts) == ["Retry"], "no other act of this user fits dead jobs"
        assert bulk_form(operator.get(acts["Retry"]).content.decode())["ids"] == str(dead.pk)
    dead.delete()
    assert "No job meets this search now." in operator.get(acts["Retry"]).content.decode()


def test_text_that_is_no_value_lists_no_job_of_the_chosen_task(operator: Client, bill: Any, make_job: JobMaker) -> None:
    """*Select all* would take every job of the task."""
    job, other = bill.enqueue(1), make_job(task_name="shop.send")
    assert found(operator, "acme-7", task=bill.name) == []
    assert "not a value of a, b" in notes_of(operator, "acme-7", task=bill.name)
    assert found(operator, "shop.send", task=bill.name) == []
    assert found(operator, bill.name, task=bill.name) == [job.pk]
    assert found(operator, "shop.send", task="") == [other.pk]
    assert found(operator, "acme-7", task="") == []
    given = {"action": "cancel_selected", "select_across": "1", "_selected_action": [str(job.pk)]}
    answer = operator.post(f"{JOBS}?q=acme-7&task={bill.name}", given, follow=True)
    assert "the list is empty now" in answer.content.decode()


def test_search_without_a_match_names_the_filters(operator: Client, bill: Any) -> None:
    bill.enqueue("red")
    note = notes_of(operator, "red", state="dead", queue="mail")
    assert note.startswith(
        "No job was found with these filters (state dead, queue mail): the jobs with this value of a, "
    )
    assert re.search(r"\bb\b.* do not meet the filters", note)
    assert "with these filters (dead letters only): the jobs with" in notes_of(operator, "red", DEAD)
    assert "meets the filters (state dead)" in notes_of(operator, "a:red", state="dead")


# ------------------------------------------------------------------ a value without a name


def test_search_by_value_looks_under_every_declared_key(operator: Client, bill: Any, make_job: JobMaker) -> None:
    first, second, both = bill.enqueue("red"), bill.enqueue(1, b="red"), bill.enqueue("red", b="red")
    dead = make_job("dead", task_name=bill.name)
    undeclared = make_job()
    keys = {dead.pk: {"a": "red"}, undeclared.pk: {"elsewhere": "red"}}
    lifecycle_search_keys.add_search_keys(connection, keys)
    assert found(operator, "red") == [dead.pk, both.pk, second.pk, first.pk]
    assert found(operator, "red", DEAD) == [dead.pk]
    assert re.match(r"with this value of a, b\b.* · newest first", notes_of(operator, "red"))
    assert found(operator, "re") == found(operator, "blue") == []
    assert re.search(r"No job was found: not a value of a, b\b", notes_of(operator, "blue"))
    assert found(operator, "elsewhere:red") == [undeclared.pk], "a key of a task that this process does not know"


def test_search_by_number_finds_job_and_value(operator: Client, bill: Any, make_job: JobMaker) -> None:
    numbered = make_job()
    with_value = bill.enqueue(numbered.pk)
    others = bill.enqueue_many([(numbered.pk,)] * 2)
    assert found(operator, str(numbered.pk)) == [numbered.pk, *others[::-1], with_value.pk]
    first = "first the job with this number, then those with this value of a, b"
    assert notes_of(operator, str(numbered.pk)).startswith(first)
    assert notes_of(operator, str(with_value.pk)).startswith("the job with this number: no other has it as a value of")
    assert "with this value of a, b" in notes_of(operator, str(numbered.pk), state="ready")
    assert "neither the number of a job in this list nor a value of a, b" in notes_of(operator, "9" * 18)
    assert found(operator, f"#{numbered.pk}") == [numbered.pk]
    assert notes_of(operator, f"#{numbered.pk}") == "exact · newest first"
    long = bill.enqueue("9" * 30)
    assert found(operator, "9" * 30) == [long.pk]


def test_search_by_value_with_colon_or_of_a_task_finds_jobs(operator: Client, bill: Any, make_job: JobMaker) -> None:
    with_colon, of_task = bill.enqueue("urn:7"), make_job(task_name="shop.send")
    assert found(operator, "urn:7") == [with_colon.pk]
    assert found(operator, "shop.send") == [of_task.pk]
    assert found(operator, bill.name) == [with_colon.pk]
    assert notes_of(operator, bill.name) == "exact · newest first"


def test_search_by_value_without_declared_keys_says_so(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    monkeypatch.setattr(registry, "_tasks", {})
    assert "no task of this process declares one" in notes_of(operator, "red")
    assert found(operator, str(job.pk)) == [job.pk]
    assert notes_of(operator, str(job.pk)) == "exact · newest first"


def test_search_by_value_reads_a_limited_number_of_keys(
    operator: Client, bill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bill.enqueue("red")
    monkeypatch.setattr(search_keys, "NAMES_LIMIT", 1)
    monkeypatch.setattr(registry, "_tasks", {bill.name: bill})
    assert found(operator, "red") == [job.pk]
    assert notes_of(operator, "red").startswith("with this value of a; further search keys were not searched")
    bill.enqueue(1, b="blue")
    assert found(operator, "blue") == []


def test_search_by_value_sends_one_statement_for_all_keys(operator: Client, bill: Any) -> None:
    bill.enqueue("red")
    with CaptureQueriesContext(connection) as queries:
        operator.get(JOBS, {"q": "red"})
    assert sum("pgqueue_search_key" in query["sql"] for query in queries) == 1
    with CaptureQueriesContext(connection) as others:
        operator.get(JOBS, {"q": bill.name})
    assert len(queries) <= len(others) + 1


# ------------------------------------------------------------------ without the permission to view arguments


def test_user_without_permission_finds_jobs_of_known_tasks(
    client_of: Callable[..., Client], bill: Any, make_job: JobMaker
) -> None:
    known, unknown = make_job(task_name=bill.name), make_job(task_name="shop.unknown")
    client = client_of("view_job")
    before = notes_of(client, "secret:red"), notes_of(client, "a:red")
    lifecycle_search_keys.add_search_keys(connection, {unknown.pk: {"secret": "red", "a": "red"}})
    assert (notes_of(client, "secret:red"), notes_of(client, "a:red"))[0] == before[0]
    assert found(client, "secret:red") == found(client, "a:red") == []
    assert notes_of(client, "a:red") == before[1]
    lifecycle_search_keys.add_search_keys(connection, {known.pk: {"secret": "red", "a": "red"}})
    assert found(client, "secret:red") == []
    assert found(client, "a:red") == [known.pk]
    assert "tasks that this process does not know were not searched" in notes_of(client, "a:red")
    assert "exact" not in notes_of(client, "a:red")


def test_search_without_permission_is_logged_without_the_value(
    client_of: Callable[..., Client],
    make_user: Callable[..., User],
    bill: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = client_of("view_job", "cancel_job")
    with caplog.at_level(logging.INFO, logger="django_pgqueue.operator"):
        for term in ("a:secret-value", "secret-value", "other:secret-value", "7", f"a:{'x' * 200}"):
            found(client, term)
        [record] = caplog.records
        assert (vars(record)["event"], vars(record)["user"], vars(record)["search_key"]) == (
            *("search_without_arguments", "staff", "a"),
        )
        assert record.levelname == "INFO" and "secret-value" not in f"{record.getMessage()}{vars(record)}"
        caplog.clear()
        job = bill.enqueue("red")
        given = {"action": "cancel_selected", "select_across": "1", "_selected_action": [str(job.pk)]}
        client.post(f"{JOBS}?q=a:red", {**given, "shown": ""})
        assert len(caplog.records) == 1, "the list of an act searches twice"
        caplog.clear()
        client.force_login(make_user("view_job", "view_arguments", name="other"))
        found(client, "a:red")
        assert not caplog.records


def test_user_without_permission_finds_a_key_typed_in_full(client_of: Callable[..., Client], bill: Any) -> None:
    job = bill.enqueue("secret-value", b="secret-other")
    client = client_of("view_job")
    assert found(client, "a:secret-value") == [job.pk]
    text = unescape(client.get(JOBS, {"q": "a:secret-value"}).content.decode())
    assert "secret-other" not in text and "secret-value" not in re.sub(r'value="[^"]*"|\?[^"]*"', "", text)
    for term in ("a:secret", "a:secret-valu", "a:", "a:%", "a:secret-value2", "b:secret-value"):
        assert found(client, term) == [], term


def test_user_without_permission_searches_no_value(client_of: Callable[..., Client], bill: Any) -> None:
    bill.enqueue("secret-value")
    client = client_of("view_job")
    with CaptureQueriesContext(connection) as queries:
        notes = {term: notes_of(client, term) for term in ("secret-value", "secret-none")}
    assert not any("pgqueue_search_key" in query["sql"] for query in queries)
    assert found(client, "secret-value") == []
    assert len(set(notes.values())) == 1, "the answer does not say whether the value exists"
    [note] = set(notes.values())
    assert "search keys were not searched" in note and "type a key in full, such as a:4711" in note
    assert "view arguments and results of jobs" in note and "exact" not in note


def test_user_without_permission_finds_no_value_by_its_beginning(
    client_of: Callable[..., Client], make_user: Callable[..., User], bill: Any
) -> None:
    """The stored values are cut after 200 characters, so those can be the beginning of a longer value."""
    job = bill.enqueue("x" * 300)
    whole = bill.enqueue("y" * 199)
    client = client_of("view_job")
    for length in (200, 201, 300):
        assert found(client, f"a:{'x' * length}") == []
        assert "values of 200 characters and more were not searched" in notes_of(client, f"a:{'x' * length}")
    assert found(client, f"a:{'y' * 199}") == [whole.pk]
    client.force_login(make_user("view_job", "view_arguments", name="other"))
    assert found(client, f"a:{'x' * 200}") == [job.pk]


def test_user_without_permission_sees_that_numbers_are_no_values(
    client_of: Callable[..., Client], bill: Any, make_job: JobMaker
) -> None:
    numbered = make_job()
    bill.enqueue(numbered.pk)
    client = client_of("view_job")
    assert found(client, str(numbered.pk)) == [numbered.pk]
    assert "search keys were not searched" in notes_of(client, str(numbered.pk))


def test_list_of_hidden_limit_key_says_it_was_not_searched(
    client_of: Callable[..., Client], make_job: JobMaker
) -> None:
    make_job(limit_key="letters:to:anna")
    client = client_of("view_job")
    texts = [client.get(JOBS, {"limit": key}).content.decode() for key in ("letters:to:anna", "letters:to:emma")]
    for text in texts:
        assert text.count("the limit key was not searched") == 2 and ">exact" not in text


def test_search_by_name_that_became_sensitive_finds_nothing(
    operator: Client, bill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bill.enqueue("secret-value")
    hiding: Task[..., Any] = Task(func=tasks.plus.func, name=bill.name, sensitive=frozenset({"a"}), search=("b",))
    monkeypatch.setitem(registry._tasks, bill.name, hiding)
    assert found(operator, "a:secret-value") == found(operator, "secret-value") == []
    assert "jobs of tasks that mark a as sensitive were not searched" in notes_of(operator, "a:secret-value")
    assert "secret-value" not in operator.get(f"{JOBS}{job.pk}/change/").content.decode()
    also: Task[..., Any] = Task(func=tasks.plus.func, name="shop.also", search=("a",))
    monkeypatch.setitem(registry._tasks, also.name, also)
    other = also.enqueue("secret-value")
    assert found(operator, "a:secret-value") == found(operator, "secret-value") == [other.pk]
    assert "mark a as sensitive" in notes_of(operator, "secret-value")


def test_job_page_links_to_search(operator: Client, make_user: Callable[..., User], bill: Any) -> None:
    job = bill.enqueue('<b>"&', 7)
    page = operator.get(f"{JOBS}{job.pk}/change/").content.decode()
    links = [unescape(link) for link in re.findall(r'href="([^"]*\?q=[^"]*)"', page)]
    assert len(links) == 2
    for link in links:
        assert f'value="{job.pk}"' in operator.get(link).content.decode()
    assert "a:&lt;b&gt;&quot;&amp;" in page
    operator.force_login(make_user("view_job", name="other"))
    page = operator.get(f"{JOBS}{job.pk}/change/").content.decode()
    assert "&lt;b&gt;" not in page
    assert "Search keys" in page


def test_job_page_of_job_without_keys_has_no_such_fact(operator: Client, make_job: JobMaker) -> None:
    job: Job = make_job()
    assert "Search keys" not in operator.get(f"{JOBS}{job.pk}/change/").content.decode()


@pytest.mark.usefixtures("many_jobs")
@pytest.mark.parametrize(
    ("url", "indexes"),
    [(f"{JOBS}?", "pkey"), (f"{JOBS}?state=succeeded&", "pkey"), (f"{DEAD}?", "pkey|finished|dead")],
    ids=["all", "succeeded", "few dead jobs"],
)
def test_search_by_key_reads_jobs_by_their_ids(operator: Client, bill: Any, url: str, indexes: str) -> None:
    """Otherwise the list would walk over all jobs in its own order until it has found enough.

    Few dead jobs can be read in their own order as well.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_search_key (job_id, name, value) "
            "SELECT id, 'a', (id % 60)::text FROM pgqueue_job; ANALYZE pgqueue_search_key"
        )
    found = [plan for plan in plans(operator, f"{url}q=a:7") if "ANY ('{" in plan]
    assert found
    for plan in found:
        assert re.search(f"using pgqueue_job_({indexes}) on pgqueue_job ", plan), plan
        assert not re.search("Seq Scan on pgqueue_(job|search_key)", plan), plan


@pytest.mark.parametrize("may_view", [True, False])
def test_act_of_a_search_names_the_search_key(
    make_user: Callable[..., User], operator: Client, bill: Any, may_view: bool
) -> None:
    bill.enqueue(4711)
    preview = operator.get(acts_of(operator, JOBS, q="a:4711")["Cancel"])
    fields = bulk_form(preview.content.decode())
    assert ("Search key", "a:4711") in [(str(name), value) for name, value in preview.context["described"]]
    operator.post(REQUEST, {**fields, "reason": "4711 asked for it"})
    entry = AuditEntry.objects.get()
    assert entry.filter["search"] == "a:4711"
    operator.force_login(make_user("view_job", *(["view_arguments"] if may_view else []), name="other"))
    page = operator.get(f"{JOBS}bulk_act/?id={entry.pk}").content.decode()
    assert ("a:…" in page, "4711" in page) == (not may_view, may_view)


def test_select_all_of_a_search_names_the_search_key(operator: Client, bill: Any) -> None:
    job = bill.enqueue(4711)
    given = {"action": "cancel_selected", "select_across": "1", "_selected_action": [job.pk]}
    for typed, key in (("a:4711", "a:4711"), (":4711", ":4711"), (str(job.pk), None)):
        preview = operator.post(f"{JOBS}?q={typed}", given)
        assert bulk_form(preview.content.decode()).get("search") == key


def test_erasure_of_a_search_keeps_no_value_in_the_audit(client_of: Callable[..., Client], bill: Any) -> None:
    client = client_of("view_job", "erase_job", "view_arguments")
    job = bill.enqueue(4711)
    Job.objects.filter(pk=job.pk).update(state="dead", finished_at=timezone.now())
    fields = bulk_form(client.get(f"{JOBS}bulk_preview/?action=erase&q=a:4711").content.decode())
    client.post(REQUEST, {**fields, "erase_arguments": "on", "reason": "asked"})
    assert AuditEntry.objects.get().filter["search"] == "a"
