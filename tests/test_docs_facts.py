"""Statements of the documentation that the code can make wrong: states, counts, and what is stored where."""

from __future__ import annotations

import re

import pytest

from django_pgqueue.doctor.catalogue import CHECKS
from django_pgqueue.models import Job, JobStep, SentEvent
from django_pgqueue.models.encoded_field import CodecJSONField
from django_pgqueue.options.task_options import OPTIONS
from django_pgqueue.settings import conf
from django_pgqueue.states import State
from tests.documents import CODE, PAGES, TOP, prose, table
from tests.rules import for_each
from tests.tools.faults.catalogue import load

MOST_WORDS = 140_000
"""Words of the pages in `docs/` and of the README. A page that needs more is to say each thing once."""
SUMMARIES = {name: (TOP / "django_pgqueue" / name).read_text() for name in ("AGENTS.md", "llms.txt")}
STATE = re.compile(r"\b(?:" + "|".join(State) + r")\b")


def test_pages_together_have_not_too_many_words():
    """Tokens of letters or digits, without the lines of tables and the signs of lists."""
    texts = [text for page, text in PAGES.items() if page.startswith("docs/") or page == "README.md"]
    count = sum(any(map(str.isalnum, word)) for text in texts for word in text.split())
    assert 100_000 < count <= MOST_WORDS


def lists_of_states(text: str) -> list[str]:
    """Return the lists of words that name at least five states."""
    word = rf"[`*]*(?:{'|'.join(State)})[`*]*(?: \([^)]*\))?"
    return re.findall(rf"{word}(?:(?:,|,? or|,? and)\s+{word}){{4,}}", text)


@for_each([*PAGES, *SUMMARIES])
def test_page_list_of_states_has_all_of_them(page):
    for found in lists_of_states(SUMMARIES.get(page) or PAGES[page]):
        assert set(STATE.findall(found)) >= set(State), found


def test_list_without_a_state_is_found():
    old = "`ready`, `running`, `succeeded`, `dead` or `cancelled`"
    assert lists_of_states(f"It is {old}.") == [old]
    assert lists_of_states("ready, running, or retried, and dead") == []


def test_doctor_page_example_counts_every_check():
    [counts] = re.findall(
        r"^(\d+) checks: (\d+) ok, (\d+) info, (\d+) warning, (\d+) error$",
        PAGES["docs/production/doctor.md"],
        re.MULTILINE,
    )
    checks, *levels = map(int, counts)
    assert checks == sum(levels) == len(CHECKS)


def test_readme_counts_every_fault():
    [count] = re.findall(r"injects\s+(\d+)\s+\[faults\]", PAGES["README.md"])
    assert int(count) == len(load())


def test_upgrading_page_says_of_each_option_which_jobs_a_change_affects():
    named = [CODE.findall(row[0]) for row in table("docs/production/upgrading.md", "options")]
    assert len(named) == 3
    # `name` is the identity of a task, and `headers` are set by `using()` only, like `batch` and `run_after`.
    assert sorted(name for names in named for name in names) == sorted({*OPTIONS, "headers"} - {"name"})


def test_tasks_page_names_the_options_of_a_call_only():
    for option in ("run_after", "batch", "headers"):
        assert re.search(rf"`{option}`[^.]*options of one call", prose("docs/guides/tasks.md")), option


ENCODED = {
    (Job, "arguments"): "arguments of",
    (Job, "result"): "results",
    (JobStep, "result"): "durable steps",
    (JobStep, "compensation_arguments"): "compensations",
    (SentEvent, "payload"): "payloads of",
}


def test_codecs_page_names_each_encoded_column():
    columns = {
        (model, field.name)
        for model in (Job, JobStep, SentEvent)
        for field in model._meta.concrete_fields
        if isinstance(field, CodecJSONField)
    }
    assert columns == set(ENCODED)
    encoded = " ".join(row[0] for row in table("docs/guides/codecs.md", "value") if row[1].startswith("yes"))
    assert [words for words in ENCODED.values() if words not in encoded] == []


@pytest.mark.parametrize("page", ["docs/project/choosing.md", "docs/project/comparison.md", "docs/guides/sql.md"])
def test_page_on_other_languages_names_remote_workers(page):
    assert "remote_workers.md" in PAGES[page]
    assert "cannot run jobs" not in PAGES[page]


@for_each([page for page in PAGES if "/coming_from/" in page])
def test_page_of_another_queue_maps_pipelines_to_workflows(page):
    text = " ".join(prose(page).split())
    assert "enqueues the next one as its last step" not in text
    if re.search(r"[Pp]ipeline|depends_on|[Cc]hains\b", text):
        assert "guides/workflows.md" in text


def test_schedules_page_names_intervals_as_text():
    assert 'cron("every 5 minutes")' in PAGES["docs/guides/schedules.md"]


# ------------------------------------------------------------------ the README and the first queries

README = PAGES["README.md"]


def test_readme_shows_a_task_on_the_first_screen_and_says_alpha():
    screen = README.splitlines()[:25]
    assert "    return order.email" in screen
    assert "**alpha**" in " ".join(screen[:5])
    assert "Development Status :: 3 - Alpha" in (TOP / "pyproject.toml").read_text()


def test_readme_says_how_many_attempts_are_the_default():
    assert conf.Settings().MAX_ATTEMPTS == 10
    assert "by default, a job has **ten attempts**" in " ".join(README.split())


def test_readme_warns_of_the_project_with_a_similar_name():
    install = README.partition("## Install")[2].partition("\n## ")[0]
    assert "`django-pgqueue` of the package index is another project" in " ".join(install.split())


@pytest.mark.parametrize("page", ["docs/guides/enqueue.md", "docs/reference/models.md"])
def test_page_shows_the_indexed_query_before_the_slow_one(page):
    text = PAGES[page]
    assert 0 < text.index("Job.objects.due().filter(") < text.index('filter(state="ready")')
