"""The page on choosing: its table is arithmetic with measured figures, and it quotes them as the evidence has them."""

import re

import pytest

from django_pgqueue.db.fields import PlainJSONField
from django_pgqueue.settings import setting_kinds
from tests.documents import PAGES, table

CHOOSING = PAGES["docs/project/choosing.md"]
MEASURED = PAGES["docs/internals/performance.md"]
DAY = 24 * 3600


def number(text: str) -> float:
    return float(text.replace(",", "").removesuffix(" GB"))


def figure(pattern: str) -> float:
    """Return the figure that the page on performance has at a place."""
    [found] = re.findall(pattern, MEASURED)
    return number(found)


def test_table_of_rates_follows_from_the_measured_figures():
    wal_bytes = figure(r"\*\*one process\*\* \| [^|]+\| ([\d,]+) B")
    finished = figure(r"contained ([\d,]+) finished and")
    rows = finished + figure(r"finished and ([\d,]+) future jobs")
    bytes_a_row = figure(r"priorities \(([\d.]+) GB\)") * 1e9 / rows
    kept_days = setting_kinds.DEFAULT_RETENTION["succeeded"] / DAY
    table_rows = table("docs/project/choosing.md", "jobs per second")
    assert len(table_rows) == 5
    for row in table_rows:
        rate, *shown = map(number, row)
        jobs = rate * DAY
        kept = jobs * kept_days
        expected = [jobs, jobs * wal_bytes / 1e9, kept, kept * bytes_a_row / 1e9]
        assert shown == [float(f"{value:.2g}") for value in expected], row


@pytest.mark.parametrize(
    "quoted",
    [
        "25,000", "847", "696", "383", "1,720", "2,040", "1.76 ms", "0.97 ms", "1,441", "14,350",
        "24 statements", "60 ms of CPU", "1.05 times the rate of the first", "250,000 jobs",
    ],
)  # fmt: skip
def test_quoted_figure_is_on_the_page_of_measurements(quoted):
    assert quoted in " ".join(CHOOSING.split())
    assert quoted in " ".join(MEASURED.split())


def test_cost_of_json_is_the_one_that_was_measured():
    """The figures are the rate with `json` divided by the rate with `jsonb`, on all three pages."""
    pages = (CHOOSING, PAGES["docs/internals/storage.md"], PlainJSONField.__doc__)
    for page in pages:
        assert re.search(
            r"[Cc]ompared with `jsonb`, claim\w+ and complet\w+\s+ran[^.]*0\.96\D[^.]*", " ".join(page.split())
        )
        assert all(figure in page for figure in ("0.96", "1.08", "1.33"))


def test_index_on_the_state_was_measured():
    assert "at 0.36 times the rate" in PAGES["docs/internals/storage.md"]
    assert "2.8 times slower" in CHOOSING  # 1 / 0.36


def test_page_answers_each_question_about_the_design():
    for question in ("advisory locks", "whose lease has ended", "`json` instead of `jsonb`", "`updated_at`"):
        assert re.search(rf"^\*\*[^*]*{re.escape(question)}[^*]*\?\*\*", CHOOSING, re.MULTILINE), question
