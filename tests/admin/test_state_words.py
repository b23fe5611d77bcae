"""The words for states in the admin: each filter finds exactly its jobs, and each badge can be read and told apart."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import django.contrib.admin
import pytest
from django.test import Client
from django.utils import timezone

import django_pgqueue
from django_pgqueue.admin.formatting import LABELS
from django_pgqueue.models import Job
from tests.admin.conftest import JobMaker, set_state
from tests.admin.test_lists import DEAD, JOBS, ids

pytestmark = pytest.mark.slow

CSS = Path(django_pgqueue.__file__).parent / "static/pgqueue/admin.css"
DJANGO_CSS = Path(django.contrib.admin.__file__).parent / "static/admin/css"


def test_filter_by_word_lists_exactly_its_jobs(operator: Client, one_of_each: dict[str, Job]) -> None:
    wider = {"running": {"running", "lost", "cancelling"}}
    for word in one_of_each:
        expected = {one_of_each[each].pk for each in wider.get(word, {word})}
        assert set(ids(operator, JOBS, state=word)) == expected, word


def test_list_and_page_name_the_word_of_each_job(operator: Client, one_of_each: dict[str, Job]) -> None:
    table = operator.get(JOBS).content.decode().split('id="result_list"')[1].split("</table>")[0]
    shown = dict(re.findall(r'#(\d+)</a>.*?pgqueue-state pgqueue-\w+">(\w+)<', table, flags=re.DOTALL))
    assert shown == {str(job.pk): word for word, job in one_of_each.items()}
    for word, job in one_of_each.items():
        page = operator.get(f"{JOBS}{job.pk}/change/").content.decode()
        assert f'pgqueue-state pgqueue-{word}">{word}<' in page.split("pgqueue-situation")[1].split("</p>")[0]


def variables(text: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+):\s*([^;]+);", text))


def colour(value: str, known: dict[str, str]) -> str:
    """Return `#rrggbb` for a colour or a reference to a variable."""
    while (reference := re.match(r"var\(--([\w-]+)\)", value)) is not None:
        value = known[reference[1]]
    value = value.strip()
    return "#" + "".join(2 * digit for digit in value[1:]) if len(value) == 4 else value


def luminance(value: str) -> float:
    parts = [int(value[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_badges_have_enough_contrast_and_a_sign_each(theme: str) -> None:
    known = variables((DJANGO_CSS / "base.css").read_text().split("}")[0])
    if theme == "dark":
        known |= variables((DJANGO_CSS / "dark_mode.css").read_text().split("}")[0])
    css = CSS.read_text()
    signs = {}
    for word in LABELS:
        rules = re.findall(rf"\.pgqueue-{word}(?:, \.[\w-]+)? {{([^}}]*)}}", css)
        rules += re.findall(rf"\.pgqueue-\w+, \.pgqueue-{word} {{([^}}]*)}}", css)
        declared = dict(re.findall(r"([\w-]+):\s*([^;]+);", " ".join(rules)))
        backgrounds = [declared["background"]] if "background" in declared else ["var(--body-bg)", "var(--darkened-bg)"]
        for background in backgrounds:
            pair = [luminance(colour(each, known)) for each in (declared["color"], background)]
            assert (max(pair) + 0.05) / (min(pair) + 0.05) >= 4.5, (theme, word, background)
        sign = re.search(rf'\.pgqueue-{word}::before {{ content: "([^"]+)"', css)
        signs[word] = sign[1] if sign else ""
    del signs["ready"]  # a filter, and no word of a job
    assert "" not in signs.values() and len(set(signs.values())) == len(signs)


# ------------------------------------------------------------------ the lists


def test_running_jobs_are_listed_longest_first(operator: Client, make_job: JobMaker) -> None:
    """The ids of executions grow in the order of their claims."""
    short, long = make_job(), make_job("running")
    set_state(short.pk, "running")
    assert ids(operator, JOBS, state="running") == [long.pk, short.pk]
    assert "longest run first" in operator.get(JOBS, {"state": "running"}).content.decode()


def test_free_span_bounds_the_end_of_finished_jobs(operator: Client, make_job: JobMaker) -> None:
    old, new = make_job("dead"), make_job("dead")
    now = timezone.now()
    Job.objects.filter(pk=old.pk).update(finished_at=now - timedelta(days=3))
    span = {"since": (now - timedelta(days=4)).isoformat(), "until": (now - timedelta(days=2)).isoformat()}
    assert ids(operator, DEAD, **span) == ids(operator, JOBS, state="dead", **span) == [old.pk]
    assert ids(operator, DEAD, since=span["until"]) == [new.pk]
    page = operator.get(DEAD, {"since": "2026-13-45T00:00"}).content.decode()
    assert "The time in the URL is invalid" in page


def test_free_span_bounds_the_enqueue_of_other_jobs(operator: Client, make_job: JobMaker) -> None:
    now = timezone.now()
    old = make_job(enqueued_at=now - timedelta(days=3))
    new = make_job()
    assert ids(operator, JOBS, until=(now - timedelta(days=1)).isoformat()) == [old.pk]
    assert ids(operator, JOBS, since=(now - timedelta(days=1)).isoformat()) == [new.pk]


def test_error_filter_finds_dead_jobs_by_class(operator: Client, make_job: JobMaker) -> None:
    from tests.admin.conftest import add_execution

    declined, timeout, lost = make_job("dead"), make_job("dead"), make_job("dead")
    add_execution(declined, exception_class="shop.Timeout")
    add_execution(declined, exception_class="shop.Declined")
    add_execution(timeout, exception_class="shop.Timeout")
    add_execution(lost, outcome="crashed", exception_class="")
    for error in ("shop.Declined", "Declined"):
        assert ids(operator, DEAD, error=error) == [declined.pk]
    assert ids(operator, DEAD, error="-") == [lost.pk]
    assert ids(operator, DEAD, error=".*") == []


@pytest.mark.parametrize(("names", "has_field"), [(20, False), (21, True)])
def test_many_names_are_suggested_in_a_field(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch, names: int, has_field: bool
) -> None:
    from django_pgqueue.tasks import registry

    monkeypatch.setattr(registry, "all_tasks", list)
    for number in range(names):
        make_job(queue_name=f"<b>{number:02}")
    page = operator.get(JOBS, {"task": "app.add"}).content.decode()
    assert ('<option value="&lt;b&gt;07">' in page) is has_field
    assert ("queue=%3Cb%3E07" in page) is not has_field
    form = page.split('list="pgqueue-names-queue"')[0].rpartition("<form")[2] if has_field else ""
    assert ('name="task" value="app.add"' in form) is has_field


def test_counts_say_how_far_they_can_be_trusted(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_pgqueue.job_search import search

    for number in range(4):
        make_job("succeeded", queue_name="mail" if number % 2 else "default")
    wanted = {"state": "succeeded", "queue": "mail"}
    assert ">exact · latest first" in operator.get(JOBS, wanted).content.decode()
    monkeypatch.setattr(search, "SEARCHED", 1)
    page = operator.get(JOBS, wanted).content.decode()
    assert re.search(r"among the newest 1 jobs, since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d · latest first", page)
    assert "Search older jobs" in page


def test_link_to_older_jobs_reaches_them(operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_pgqueue.job_search import search

    monkeypatch.setattr(search, "SEARCHED", 2)
    wanted = make_job("dead", queue_name="mail")
    for number in range(1, 9):
        job = make_job("dead")
        Job.objects.filter(pk=job.pk).update(finished_at=timezone.now() - timedelta(hours=number))
    Job.objects.filter(pk=wanted.pk).update(finished_at=timezone.now() - timedelta(hours=20))
    response = operator.get(JOBS, {"state": "dead", "queue": "mail"})
    assert "No such job among the newest 4 jobs" in response.content.decode()
    for _ in range(3):
        response = operator.get(JOBS + response.context["cl"].older_url)
        if response.context["cl"].result_list:
            break
    assert [job.pk for job in response.context["cl"].result_list] == [wanted.pk]


def test_empty_list_says_what_was_searched(operator: Client, db: None) -> None:
    assert "No jobs. Finished jobs are removed" in operator.get(JOBS).content.decode()
    assert "All jobs in this database were searched" in operator.get(JOBS, {"queue": "none"}).content.decode()
