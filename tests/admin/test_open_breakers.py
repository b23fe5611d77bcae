"""An open circuit breaker: the pages, the command and the statistics show the one slot that claims obey."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from types import MappingProxyType

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgqueue import Breaker, Limit, control, stats
from django_pgqueue.declared.limit_policies import policy_of
from django_pgqueue.lifecycle.limit_overrides import controls_of
from django_pgqueue.models import OpenBreaker
from django_pgqueue.tasks import registry

from .conftest import JobMaker
from .limits import CHANGE, OF_LIMIT, PAGE, plain, rows_of, run, text_of

BREAKER = Breaker(failures=0.5, attempts=20, seconds=60, pause=30)
LIMITS = {
    limit.name: limit
    for limit in (
        Limit("tax", concurrency=8, breaker=BREAKER),
        Limit("site", key="{a}", concurrency=5, breaker=BREAKER),
        Limit("without", concurrency=4),
    )
}
PROBES = "The circuit breaker probes the limit: one job at a time runs."
OPEN = "The circuit breaker is open. After the pause, one job at a time probes the limit."


@pytest.fixture(autouse=True)
def known_limits(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))
    for limit_key in ("tax", "site:a", "without", "elsewhere:7"):
        OpenBreaker.objects.create(limit_key=limit_key, after_execution_id=0)


def figures(name: str) -> stats.LimitFigures:
    return next(each for each in stats.limits() if each.name == name)


def pgqueue(*arguments: str) -> str:
    stdout = StringIO()
    call_command("pgqueue", *arguments, stdout=stdout, stderr=StringIO())
    return stdout.getvalue()


def test_pages_show_the_slot_of_a_probing_breaker(operator: Client, make_job: JobMaker) -> None:
    run(make_job(limit_key="site:a"))
    make_job(limit_key="site:a")
    rows = {label: plain(row) for label, row in rows_of(text_of(operator)).items()}
    assert "tax breaker probing" in rows["tax"] and PROBES in rows["tax"]
    assert "at most 1 at a time · paused for 30 s when 50 % of at least 20 attempts in 1 min fail" in rows["tax"]
    assert "at most 5 at a time" in rows["site"] and "keys with an open breaker: 1" in rows["site"]
    assert "at most 4 at a time" in rows["without"] and "breaker" not in rows["without"]
    text = text_of(operator, OF_LIMIT, limit="site")
    of_key = plain(rows_of(text)["a"])
    assert "a breaker probing" in of_key and PROBES in of_key
    assert "Its running jobs use 1 of 1 slots." in of_key
    assert "Paused or changed keys" in text


@pytest.mark.parametrize("paused", ["site:a", "site"])
def test_page_of_paused_key_says_that_it_is_probed_later(operator: Client, make_job: JobMaker, paused: str) -> None:
    make_job(limit_key="site:a")
    control.pause(limit_key=paused, by="circuit breaker")
    of_key = plain(rows_of(text_of(operator, OF_LIMIT, limit="site"))["a"])
    assert "breaker open" in of_key and OPEN in of_key and PROBES not in of_key


def test_page_says_since_when_a_breaker_is_open(operator: Client, make_job: JobMaker) -> None:
    make_job(limit_key="site:a")
    OpenBreaker.objects.update(opened_at="2026-01-01 12:00Z", probes_failed=2)
    of_key = plain(rows_of(text_of(operator, OF_LIMIT, limit="site"))["a"])
    assert "The breaker has been open since 2026-01-01 12:00:00, and 2 probes have failed since then." in of_key


def test_form_keeps_the_values_of_the_usual_limit(client_of: Callable[..., Client]) -> None:
    engineer = client_of("view_job", "change_limits", "view_arguments")
    text = text_of(engineer, CHANGE, key="site:a")
    assert 'name="concurrency" value="5"' in text
    control.override_limit("site:a", concurrency=3, by="ben")
    text = text_of(engineer, OF_LIMIT, limit="site", key="a")
    assert "concurrency 3 instead of 5" in text


def test_command_shows_the_slot_of_a_probing_breaker(make_job: JobMaker) -> None:
    lines = {line.split()[0]: line for line in pgqueue("limits", "list").splitlines() if line}
    assert "concurrency 1" in lines["tax"] and "circuit breaker probing: one job at a time" in lines["tax"]
    assert "concurrency 5" in lines["site"] and "1 key with an open circuit breaker" in lines["site"]
    shown = pgqueue("limits", "show", "site:a")
    assert "concurrency 1" in shown and "circuit breaker probing: one job at a time" in shown
    control.pause(limit_key="site:a")
    shown = pgqueue("limits", "show", "site:a")
    assert "circuit breaker open" in shown and "probing" not in shown
    document = json.loads(pgqueue("limits", "list", "--json"))
    assert [each["has_open_breaker"] for each in document["limits"]] == [False, True, False]


def test_stats_have_the_values_that_claims_obey() -> None:
    for limit_key in ("tax", "site:a", "without"):
        limit = LIMITS[stats.limit_key(limit_key).name]
        claimed = controls_of(connection, [limit_key]).policy_of(limit_key, limit)
        values = stats.limit_key(limit_key).values
        assert values is not None and values.concurrency == claimed.concurrency
    assert policy_of(LIMITS["tax"]).concurrency == 8
    values = figures("tax").values
    assert values is not None and values.concurrency == 1 and figures("tax").has_open_breaker
    assert (figures("tax").open_breakers, figures("site").open_breakers) == (stats.Count(0), stats.Count(1))
    assert not figures("without").has_open_breaker


def test_pages_without_breaker_in_the_code_read_none(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_limits", MappingProxyType({"without": LIMITS["without"]}))
    with CaptureQueriesContext(connection) as captured:
        text_of(operator, PAGE)
    assert not [query for query in captured if 'FROM "pgqueue_open_breaker"' in query["sql"]]
