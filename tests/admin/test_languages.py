"""The console in other languages: each text of each page goes through the catalogues, and these are complete.

A pseudo-language accents each letter of a translated text. A plain word on a page is then a value, or a text that
cannot be translated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.db import models
from django.test import Client
from django.utils import translation
from django.utils.translation import trans_real

from django_pgqueue import signals, states
from django_pgqueue.display import duration, full_date, number, percent
from django_pgqueue.doctor.catalogue import CHECKS
from django_pgqueue.models import Job
from django_pgqueue.stats.answers import Count
from django_pgqueue.stats.task_descriptions import signature_of_call, summary_of
from django_pgqueue.tasks import registry
from tests.admin.test_every_page import CONSOLE, FOR_PEOPLE, anna, crawl, names_of, pages, shop, with_times
from tests.app import tasks
from tests.tools import catalogues

__all__ = ("anna", "shop", "with_times")

pytestmark = pytest.mark.slow

ACCENTED = str.maketrans("aeiouyAEIOUYcnsCNS", "ǻȇȉǿȗẏǺȆȈǾȖẎċṅṡĊṄṠ")
UNCHANGED = re.compile(r"%\(\w+\)[sd]|%[sd%]|\{\w*\}|<[^>]*>|&\w+;|^[a-zA-Z](?:[ ,.:/-]+[a-zA-Z])+\.?$")
"""Placeholders, markup, and formats of dates such as `N j, Y`."""
WORD = re.compile(r"[A-Za-z]{2,}")
MARKUP = ("code", "pre", "script", "style", "kbd")
"""Elements whose text is code, a value of a row or a key."""
ALLOWED = frozenset({"JSON", "MiB", "Search", "UTC", "anna", "ben", "min", "ms", "postgres"})
"""Names, units, and the text of an image of Django that it does not translate."""
WORDS_OF_STATES = "|".join(
    each.value
    for enum in (states.State, states.Outcome, states.StepState, states.StepKind, states.Pausable)
    for each in enum
)
"""Values of rows that pages show in the language of the reader."""
RAW = re.compile(
    rf"({WORDS_OF_STATES})( \S+)?|[^ ]+ \d+ ({WORDS_OF_STATES})\b.*|.*\b(queue|task|limit) (imports|\w+:\w+)\b.*"
)
"""A text that is such a value, alone or with a name."""
CHECK_IDS = frozenset(check.id for check in CHECKS)
"""The names of the doctor's checks, which are the same in all languages."""


def pseudo(text: str) -> str:
    """Return a text in the pseudo-language: its letters accented, but not its placeholders and its markup."""
    kept = UNCHANGED.findall(text)
    parts = [part.translate(ACCENTED) for part in UNCHANGED.split(text)]
    return "".join(part + value for part, value in zip(parts, [*kept, ""], strict=True))


@pytest.fixture
def pseudo_language(monkeypatch: pytest.MonkeyPatch) -> None:
    """Translate each text into the pseudo-language, unless the active language is English."""

    def accented(name: str) -> Callable[..., str]:
        translate = getattr(trans_real, name)
        return lambda *args: translate(*args) if translation.get_language() == "en" else pseudo(translate(*args))

    for name in ("gettext", "ngettext", "pgettext", "npgettext"):
        monkeypatch.setattr(vars(translation)["_trans"], name, accented(name), raising=False)


def test_catalogues_are_complete() -> None:
    found = catalogues.extracted()
    assert len(catalogues.texts(found)) > 1000
    assert [problem for language in catalogues.LANGUAGES for problem in catalogues.problems(language, found)] == []


def test_words_of_several_nouns_have_a_context() -> None:
    """German, French and Spanish have other forms for a step that failed and for attempts that failed."""
    found = {(context, text) for context, text in catalogues.texts(catalogues.extracted()) if isinstance(text, str)}
    assert {context for context, text in found if text == "failed"} >= {"attempt", "attempts", "batch", "step"}
    assert {context for context, text in found if text == "due"} >= {"", "jobs"}
    assert found >= {("jitter", "none"), ("exception class", "none")}
    assert ("jobs", "none") in found, "the text of a template"


def test_no_text_stands_inside_of_an_f_string() -> None:
    """Python 3.11 reads an f-string as one token, so no tool would find the text."""
    found = [
        f"{path.name}:{call.lineno}"
        for path in catalogues.PACKAGE.rglob("*.py")
        for string in ast.walk(ast.parse(path.read_text()))
        if isinstance(string, ast.JoinedStr)
        for call in ast.walk(string)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in catalogues.KEYWORDS
    ]
    assert found == []


class Visible(HTMLParser):
    """Collects the texts that people read in a page, without code and values of rows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(page.replace("<wbr>", ""))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("input", "br", "img", "link", "meta", "hr", "wbr", "col", "source"):
            self._inside.append(tag)
        given = dict(attrs)
        names = {*FOR_PEOPLE, *(("value",) if given.get("type") == "submit" else ())} - {"lang", "data-label"}
        self.texts += [value or "" for name, value in attrs if name in names]

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not set(self._inside) & set(MARKUP):
            self.texts.append(data)


def words_of_rows() -> Iterator[str]:
    """Yield the words of all texts in the tables of the queue and in the definitions of tasks."""
    for task in registry._tasks.values():
        yield from WORD.findall(f"{task.name} {signature_of_call(task)} {summary_of(task)}")
    every: list[type[models.Model]] = [LogEntry, *apps.get_app_config("pgqueue").get_models()]
    for model in every:
        names = [field.attname for field in model._meta.concrete_fields if not isinstance(field, models.DateTimeField)]
        for row in model._default_manager.values_list(*names):
            yield from WORD.findall(str(row))


def untranslated(html: str, allowed: set[str]) -> list[str]:
    """Return the texts of a page with a plain word that is no value of a row."""
    found = []
    for text in Visible(html).texts:
        words = [word for word in re.findall(r"[^\W\d_]{2,}(?!…)", text) if word.isascii() and word not in allowed]
        is_code = text.endswith(";") or text.startswith("manage.py ") or text in CHECK_IDS
        is_plain = not is_code and any(re.search("[aeiouycns]", word, re.IGNORECASE) for word in words)
        if is_plain or RAW.fullmatch(" ".join(text.split())):
            found.append(" ".join(text.split())[:200])
    return found


@pytest.mark.parametrize(
    ("language", "figures"),
    [
        ("en", ["12,345.7", "3.4 s", "3.4 %", "10,000+", "2026-11-30 17:51:03"]),
        ("de", ["12.345,7", "3,4 s", "3,4 %", "10.000+", "30.11.2026 17:51:03"]),
        ("es", ["12\xa0345,7", "3,4 s", "3,4 %", "10\xa0000+", "30/11/2026 17:51:03"]),
        ("fr", ["12\xa0345,7", "3,4 s", "3,4 %", "10\xa0000+", "30/11/2026 17:51:03"]),
        (None, ["12,345.7", "3.4 s", "3.4 %", "10,000+", "2026-11-30 17:51:03"]),
    ],
)
@pytest.mark.quick
def test_numbers_and_dates_have_form_of_language(language: str | None, figures: list[str]) -> None:
    at = datetime(2026, 11, 30, 17, 51, 3, tzinfo=UTC)
    with translation.override(language):
        shown = [
            number(12345.66, 1),
            duration(timedelta(seconds=3.4)),
            percent(0.034),
            str(Count(10_000, is_exact=False)),
            full_date(at),
        ]
    assert shown == figures


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0 %"), (0.0001, "< 0.1 %"), (0.0005, "0.1 %"), (0.03, "3 %"), (0.099, "9.9 %"), (0.0996, "10 %"),
     (0.125, "12 %"), (0.99, "99 %"), (0.9951, "99.5 %"), (0.99999, "99.9 %"), (1, "100 %"), (1.25, "125 %")],
)  # fmt: skip
@pytest.mark.quick
def test_percentages_are_0_or_100_only_if_nothing_or_everything(share: float, shown: str) -> None:
    assert percent(share) == shown
    assert percent(0.125, 4) == "12.5 %" and percent(0.5, 4) == "50 %"


def test_pages_write_percentages_with_one_function() -> None:
    own = re.compile(r"""[:.][0-9]*%\}|\} ?%["'<]""")
    others = {"display.py", "charts.py", "findings.py"}  # the function, places in a drawing, and limits of the doctor
    sources = [path for path in catalogues.PACKAGE.rglob("*.py") if path.name not in others]
    assert [path.name for path in sources if own.search(path.read_text())] == []


COMMANDS = ("status", "queues", "tasks", "limits list", "schedules list", "workers", "jobs list", "dead list", "doctor")


def test_commands_and_documents_are_english(anna: Client, pseudo_language: None, settings: Any) -> None:
    """A worker and `run` use the language of the settings: their tasks may write mails in it."""
    settings.LANGUAGE_CODE = "de"
    said = StringIO()
    waiting = Job.objects.filter(state="ready").earliest("pk")
    for command in (*COMMANDS, f"why {waiting.pk}", f"jobs show {waiting.pk}"):
        with suppress(SystemExit):
            call_command("pgqueue", *command.split(), stdout=said)
    documents = [str(anna.get(f"{CONSOLE}job/{name}.json").json()) for name in ("overview", "queues", "limits")]
    assert len(said.getvalue()) > 5000
    assert re.findall(r"[^\n]*[ǻȇȉǿȗẏ][^\n]*", "\n".join([said.getvalue(), *documents])) == []
    assert translation.get_language() == "de"


@pytest.mark.django_db(transaction=True)
def test_run_uses_language_of_settings(settings: Any) -> None:
    settings.LANGUAGE_CODE = "de"
    languages: list[str | None] = []
    job = tasks.add.enqueue(1, 2)

    def note(**details: Any) -> None:
        languages.append(translation.get_language())

    signals.job_succeeded.connect(note)
    try:
        call_command("pgqueue", "run", str(job.pk), stdout=StringIO())
    finally:
        signals.job_succeeded.disconnect(note)
    assert languages == ["de"]


def test_history_is_english(operator: Client, make_job: Any, settings: Any) -> None:
    """Not all who read it have the language of who acts."""
    settings.LANGUAGE_CODE = "de"
    job = make_job("dead")
    assert operator.post(f"{CONSOLE}job/{job.pk}/retry/", {"confirmed": "yes"}).status_code == 302
    assert LogEntry.objects.latest("pk").get_change_message() == "Retry."


@pytest.mark.timeout(600)
def test_every_text_of_every_page_is_translatable(
    anna: Client, with_times: list[str], pseudo_language: None, settings: Any
) -> None:
    settings.LANGUAGE_CODE = "de"  # not English, in which cron expressions have words
    allowed = {*ALLOWED, *words_of_rows()}
    wrong: dict[str, str] = {}
    for url in [*with_times, *pages(list(crawl(anna, names_of)))]:
        response = anna.get(url)
        if "html" in response.headers["Content-Type"]:
            for text in untranslated(response.content.decode(), allowed):
                wrong.setdefault(text, url)
    assert "\n".join(f"{url}: {text}" for text, url in wrong.items()) == ""
