"""Acts on limits and keys: pause, resume, change, undo a change, end a hold. Each acts on what the page showed."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from django_pgqueue import control
from django_pgqueue.models import AuditEntry, LimitOverride, LimitState, Pause
from tests.admin.test_databases import browser as browser
from tests.admin.test_databases import second as second
from tests.admin.test_edit_and_retry import fields_in

from .limits import CHANGE, OF_LIMIT, PAGE, Tasks, declare, form_of, plain, rows_of, run, text_of

KEY = "render:1"


@pytest.fixture(autouse=True)
def declared(db: None, monkeypatch: pytest.MonkeyPatch) -> Tasks:
    return declare(monkeypatch)


@pytest.fixture
def engineer(client_of: Callable[..., Client]) -> Client:
    """Return a client whose user may change limits and pause them."""
    return client_of("view_job", "view_arguments", "change_limits", "pause_queue")


def row_of(client: Client, limit_key: str) -> str:
    """Return the row of a limit or key on the page of its limit."""
    name, _, value = limit_key.partition(":")
    return rows_of(text_of(client, OF_LIMIT, limit=name, key=value))[value or name]


def posted(client: Client, act: str, limit_key: str, **more: str) -> str:
    """Press a button in the row of a limit or key, and return the messages and the page that follow."""
    fields = form_of(row_of(client, limit_key), act)
    if act == "pause" and ":" not in limit_key:
        fields["confirmed"] = "1"
    return plain(client.post(f"{PAGE}{act}/", {**fields, **more}, follow=True).content.decode())


def hold(limit_key: str) -> LimitState:
    now = timezone.now()
    return LimitState.objects.create(limit_key=limit_key, full_at=now, held_until=now + timedelta(hours=1))


def audited() -> list[tuple[str, str]]:
    return list(AuditEntry.objects.order_by("pk").values_list("action", "done_by"))


@pytest.mark.parametrize("limit_key", ["stripe", KEY])
def test_limit_and_key_are_paused_and_resumed(engineer: Client, limit_key: str) -> None:
    text = posted(engineer, "pause", limit_key, reason="their wish", length="3600")
    pause = Pause.objects.get()
    assert (pause.kind, pause.name, pause.paused_by, pause.reason) == ("limit", limit_key, "staff", "their wish")
    assert pause.paused_until is not None
    assert abs(pause.paused_until - timezone.now() - timedelta(hours=1)) < timedelta(minutes=1)
    assert f"Limit {limit_key} is paused." in text
    assert f"Limit {limit_key} is resumed." in posted(engineer, "resume", limit_key)
    assert not Pause.objects.exists()
    assert [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")] == [
        "Paused: their wish",
        "Resumed.",
    ]


def test_pause_of_a_whole_limit_asks_with_the_waiting_jobs(engineer: Client, declared: Tasks) -> None:
    run(declared["render"].enqueue(1))
    for key in (1, 2, 2):
        declared["render"].enqueue(key)
    fields = form_of(row_of(engineer, "render"), "pause")
    question = engineer.post(f"{PAGE}pause/", fields).content.decode()
    assert not Pause.objects.exists()
    text = plain(question)
    assert "3 jobs of all keys of this limit wait now" in text and "1 job is running, and continues." in text
    assert f'href="{PAGE}' in question and 'name="reason"' in question
    answer = fields_in(question)
    too_long = engineer.post(f"{PAGE}pause/", {**answer, "reason": "x" * 1001}).content.decode()
    assert "at most 1000 characters" in too_long and not Pause.objects.exists()
    engineer.post(f"{PAGE}pause/", {**answer, "reason": "their wish", "length": "600"})
    pause = Pause.objects.get()
    assert (pause.name, pause.reason, pause.paused_by) == ("render", "their wish", "staff") and pause.paused_until
    assert 'name="length"' in row_of(engineer, KEY), "one key needs no question"


def test_acts_return_to_their_page(engineer: Client) -> None:
    fields = {**form_of(rows_of(text_of(engineer))["stripe"], "pause"), "confirmed": "1"}
    assert engineer.post(f"{PAGE}pause/", fields).headers["Location"] == PAGE
    for outside in ("https://example.com/", "//example.com/", ""):
        answer = engineer.post(f"{PAGE}resume/", {"key": "stripe", "shown_pause": "", "back": outside})
        assert answer.headers["Location"] == f"{OF_LIMIT}?limit=stripe"


def test_acts_on_other_state_than_shown_change_nothing(engineer: Client) -> None:
    control.override_limit(KEY, concurrency=5)
    held = hold(KEY)
    row = row_of(engineer, KEY)
    pause, restore, end = (form_of(row, act) for act in ("pause", "restore", "end_hold"))
    control.pause(limit_key=KEY, by="ada")
    control.override_limit(KEY, concurrency=7, by="ada")
    LimitOverride.objects.update(changed_at=timezone.now() + timedelta(seconds=5))
    LimitState.objects.filter(pk=held.pk).update(held_until=timezone.now() + timedelta(hours=2))
    before = audited()
    for act, fields in (("pause", pause), ("restore", restore), ("end_hold", end)):
        assert "Nothing was changed" in engineer.post(f"{PAGE}{act}/", fields, follow=True).content.decode()
    assert Pause.objects.get().paused_by == "ada" and LimitOverride.objects.get().concurrency == 7
    assert LimitState.objects.exists() and audited() == before and not LogEntry.objects.exists()


def test_double_click_on_resume_says_that_it_is_not_paused(engineer: Client) -> None:
    control.pause(limit_key=KEY)
    fields = form_of(row_of(engineer, KEY), "resume")
    engineer.post(f"{PAGE}resume/", fields)
    assert "is not paused any more" in engineer.post(f"{PAGE}resume/", fields, follow=True).content.decode()


@pytest.mark.parametrize("key", ["", "two words", "render:"])
def test_acts_on_what_is_no_key_change_nothing(engineer: Client, key: str) -> None:
    for act in ("pause", "resume", "restore", "end_hold"):
        assert engineer.post(f"{PAGE}{act}/", {"key": key, "shown_pause": ""}).status_code == 302
    assert not Pause.objects.exists() and not AuditEntry.objects.exists()


def test_hold_of_key_is_ended_and_audited(engineer: Client) -> None:
    hold(KEY)
    hold("render:2")
    assert f"The hold of {KEY} has ended." in posted(engineer, "end_hold", KEY)
    assert list(LimitState.objects.values_list("limit_key", flat=True)) == ["render:2"]
    assert audited() == [("end hold", "staff")]
    assert "held" not in row_of(engineer, KEY)


# ---------------------------------------------------------------------------- the form


def values(**changes: Any) -> dict[str, Any]:
    """Return what the form of the limit `render` posts if nothing is changed."""
    fields = {"concurrency": "2", "rate": "", "burst": "1", "share": "1", "until": "", "reason": "", "shown_change": ""}
    return {**fields, **changes}


def test_form_begins_with_values_in_force(engineer: Client) -> None:
    control.override_limit("render", concurrency=5)
    for key, help_text in (("render", "In the code: 2."), (KEY, "Without this change: 5.")):
        text = text_of(engineer, CHANGE, key=key)
        assert '<input type="number" name="concurrency" value="5"' in text and help_text in text
    assert "all keys of the limit that have no change of their own" in text_of(engineer, CHANGE, key="render")
    assert 'name="concurrency"' not in text_of(engineer, CHANGE, key="import")  # ordered


def test_change_stores_only_what_differs_and_is_audited(engineer: Client) -> None:
    given = values(concurrency="7", reason="more <servers>", until="2030-01-02T03:04:05")
    answer = engineer.post(f"{CHANGE}?key={KEY}", given, follow=True)
    assert answer.redirect_chain[-1][0] == f"{OF_LIMIT}?limit=render&key=1"
    row = LimitOverride.objects.get()
    assert (row.limit_key, row.concurrency, row.rate, row.burst, row.share) == (KEY, 7, None, None, None)
    assert (row.changed_by, row.reason, row.valid_until and row.valid_until.year) == ("staff", "more <servers>", 2030)
    text = plain(answer.content.decode())
    assert f"Limit {KEY} is changed." in text and "concurrency 7 instead of 2 (more <servers>)" in text
    [entry] = AuditEntry.objects.all()
    assert (entry.action, entry.done_by, entry.filter["after"]["concurrency"]) == ("override limit", "staff", 7)
    for url in ("/admin/pgqueue/job/bulk_acts/", f"/admin/pgqueue/job/bulk_act/?id={entry.pk}"):
        listed = plain(text_of(engineer, url))
        assert "Change of a limit" in listed and "more <servers>" in listed
        assert KEY in listed and "concurrency 7" in listed


def test_change_back_to_inherited_values_removes_the_override(engineer: Client) -> None:
    control.override_limit("render", concurrency=5)
    shown = form_of(row_of(engineer, "render"), "restore")["shown_change"]
    engineer.post(f"{CHANGE}?key=render", values(shown_change=shown))
    assert not LimitOverride.objects.exists()
    assert [action for action, _ in audited()][-1] == "restore limit"


def test_undo_removes_the_override(engineer: Client) -> None:
    control.override_limit(KEY, share=3)
    assert f"The change of limit {KEY} is undone." in posted(engineer, "restore", KEY)
    assert not LimitOverride.objects.exists() and audited()[-1] == ("restore limit", "staff")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "the values are those that hold already"),
        ({"concurrency": "0"}, "greater than or equal to 1"),
        ({"concurrency": "x"}, "whole number"),
        ({"rate": "fast"}, "must be like"),
        ({"burst": "5"}, "burst needs a rate"),
        ({"share": "4", "until": "2020-01-01T00:00:00"}, "in the past"),
        ({"share": "4", "shown_change": "17"}, "was changed since the page was shown"),
    ],
)
def test_invalid_change_shows_error_and_changes_nothing(
    engineer: Client, changes: dict[str, str], message: str
) -> None:
    answer = engineer.post(f"{CHANGE}?key={KEY}", values(**changes))
    assert answer.status_code == 200 and message.lower() in plain(answer.content.decode()).lower()
    assert not LimitOverride.objects.exists() and not AuditEntry.objects.exists()


def test_second_operator_does_not_overwrite_the_first(engineer: Client) -> None:
    given = values(share="4")
    control.override_limit(KEY, share=9, by="ada")
    text = engineer.post(f"{CHANGE}?key={KEY}", given).content.decode()
    assert "Nothing was changed" in text and "by ada" in text and 'name="share" value="4"' in text
    assert LimitOverride.objects.get().share == 9


def test_form_of_limit_without_code_is_refused(engineer: Client) -> None:
    for key in ("nothing", "", "nothing:1"):
        answer = engineer.get(CHANGE, {"key": key}, follow=True)
        assert "No task of this code declares the limit" in answer.content.decode()


def test_form_needs_its_permission(operator: Client) -> None:
    assert operator.get(CHANGE, {"key": KEY}).status_code == 403
    assert operator.post(f"{CHANGE}?key={KEY}", values(share="4")).status_code == 403
    for act in ("restore", "end_hold"):
        assert operator.post(f"{PAGE}{act}/", {"key": KEY}).status_code == 403
    assert not LimitOverride.objects.exists()


def test_acts_change_the_database_of_the_page(browser: Client, second: None) -> None:
    hidden = form_of(rows_of(text_of(browser, f"{PAGE}?database=second"))["render"], "pause")
    hidden["confirmed"] = "1"
    assert hidden["back"] == f"{PAGE}?database=second"
    browser.post(f"{PAGE}pause/?database=second", hidden)
    answer = browser.post(f"{CHANGE}?key={KEY}&database=second", values(share="4"))
    assert answer.headers["Location"] == f"{OF_LIMIT}?database=second&limit=render&key=1"
    for model in (Pause, LimitOverride):
        assert model.objects.using("second").count() == 1 and not model.objects.exists()


# ---------------------------------------------------------------------------- the list of pauses


def test_list_of_pauses_adds_lists_and_resumes_key(operator: Client, declared: Tasks) -> None:
    job = declared["render"].enqueue(1)
    pauses = "/admin/pgqueue/pause/"
    operator.post(f"{pauses}add/", {"kind": "limit", "name": KEY, "reason": "their wish"})
    pause = Pause.objects.get()
    assert (pause.kind, pause.name, pause.paused_by) == ("limit", KEY, "staff")
    text = text_of(operator, pauses)
    [link] = re.findall(r'<a href="([^"]+)"[^>]*>List waiting jobs', text)
    assert [each.pk for each in operator.get(unescape(link)).context["cl"].result_list] == [job.pk]
    page = text_of(operator, f"/admin/pgqueue/job/{job.pk}/change/")
    assert "limit render:1, paused by staff: their wish" in plain(page)
    operator.post(pauses, {"action": "resume_selected", "_selected_action": [pause.pk]})
    assert not Pause.objects.exists()


@pytest.mark.parametrize("name", ["render:", "two words:1", "x" * 201])
def test_form_of_pauses_refuses_what_is_no_key(operator: Client, name: str) -> None:
    answer = operator.post("/admin/pgqueue/pause/add/", {"kind": "limit", "name": name})
    assert answer.status_code == 200 and answer.context["adminform"].form.errors["name"]
    assert not Pause.objects.exists()
