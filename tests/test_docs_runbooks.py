"""The pages for operators agree with each other and with the code: numbers, alerts, runbooks and reasons.

`tests/management/test_runbook_commands.py` runs their commands.
"""

from __future__ import annotations

import re
import textwrap
from typing import get_type_hints

import pytest
from django.db import connection

from django_pgqueue import stats
from django_pgqueue.doctor.catalogue import CHECKS
from django_pgqueue.ground.log_events import EVENTS
from django_pgqueue.models import Job
from tests import helpers
from tests.documents import CODE, LINK, PAGES, plain, prose, table
from tests.test_docs import anchors
from tests.test_docs_metrics import SERIES, expressions_of_rules

RUNBOOKS = "docs/production/runbooks.md"
MONITORING = "docs/production/monitoring.md"
TROUBLESHOOTING = "docs/production/troubleshooting.md"


def sections() -> dict[str, str]:
    """Return the text of each runbook by its anchor."""
    _, *parts = re.split(r"^## ", PAGES[RUNBOOKS], flags=re.MULTILINE)
    return {anchor_of(part.partition("\n")[0]): part for part in parts}


def anchor_of(title: str) -> str:
    [anchor] = anchors(f"# {title}")
    return anchor


def runbook_of(cell: str) -> str:
    """Return the anchor of the link in a cell of a table."""
    targets: list[str] = LINK.findall(cell)
    return targets[0].partition("#")[2]


# ------------------------------------------------------------------ runbooks


@pytest.mark.parametrize("anchor", sections())
def test_runbook_says_what_to_see_to_do_and_when_it_is_over(anchor):
    labels = re.findall(r"^\*\*(You see|Confirm|Do|It is over when)\b", sections()[anchor], re.MULTILINE)
    assert [label for label in labels if label != "Confirm"] == ["You see", "Do", "It is over when"]


def test_runbooks_are_all_in_the_table_of_what_you_see():
    assert [runbook_of(cell) for _, cell in table(RUNBOOKS, "what you see")] == list(sections())


def test_alert_rules_name_the_runbooks_of_the_page():
    seen = {anchor: text.partition("**Do")[0] for anchor, text in sections().items()}
    listed = {name: anchor for anchor, text in seen.items() for name in re.findall(r"`(Pgqueue\w+)`", text)}
    named = {name: rule["annotations"]["runbook"] for name, rule in expressions_of_rules().items()}
    assert named == {name: f"runbooks.md#{anchor}" for name, anchor in listed.items()}


def test_runbooks_name_existing_events_findings_and_metrics():
    """Each word with an underscore is a name of this package, or one of the few of others."""
    words = {word for code in CODE.findall(prose(RUNBOOKS)) for word in re.findall(r"[a-z]+(?:_[a-z]+)+", code)}
    of_health = {"completions_behind_seconds"}
    assert all(name in PAGES["docs/production/worker.md"] for name in of_health)
    of_others = {"send_newsletter", "pg_blocking_pids", "pg_repack", "queue_name", "queue_scheduler"}
    of_others |= {"prometheus_rules"}  # a file
    assert words - of_others - of_health <= {*EVENTS, *SERIES, *(check.id for check in CHECKS)}


def test_runbook_of_workers_has_every_health_status():
    listed = re.findall(r"^ +\| (`.+?`) \| ", sections()["a-worker-is-down-or-not-ready"], re.MULTILINE)
    known = {name for row in table("docs/production/worker.md", "status") for name in CODE.findall(row[0])} - {"ok"}
    assert {name for cell in listed for name in CODE.findall(cell)} == known


@pytest.mark.django_db
def test_runbook_of_deploys_lets_unknown_jobs_run_now():
    job_id = helpers.make_job(connection, delay_seconds=60.0)
    other_id = helpers.make_job(connection, delay_seconds=60.0)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET unknown_since = statement_timestamp() WHERE id = %s", [job_id])
    [code] = re.findall(r"^ +```python\n(.*?)^ +```$", PAGES[RUNBOOKS], re.MULTILINE | re.DOTALL)
    exec(textwrap.dedent(code), {})  # noqa: S102 -- our own text
    assert list(Job.objects.due().values_list("pk", flat=True)) == [job_id]
    assert Job.objects.filter(pk=other_id).exists()


# ------------------------------------------------------------------ ten numbers


def test_ten_numbers_are_those_that_can_be_read():
    numbers = [row[0] for row in table(MONITORING, "number")]
    assert [number.partition(".")[0] for number in numbers] == [str(n + 1) for n in range(10)]
    assert [row[0] for row in table(MONITORING, "to read")] == numbers


def test_ten_numbers_have_the_limits_of_their_alert_rules():
    rules = expressions_of_rules()
    for _, _, limits, runbook in table(MONITORING, "number"):
        alerts = re.findall(r"([^;]+?): `(\w+)`", limits)
        assert alerts
        for text, name in alerts:
            assert rules[name]["annotations"]["runbook"] == "runbooks.md#" + runbook_of(runbook)
            within = rules[name].get("for") or re.findall(r"\[(\w+)\]", rules[name]["expr"])[0]
            assert f"{within.removesuffix('m')} min" in text, name
            [limit] = re.findall(r"[><=] ([\d.]+)$", rules[name]["expr"].strip())
            assert float(limit) in (0, 1) or f"over {spoken(float(limit))} " in text, name


def spoken(limit: float) -> str:
    """Return a limit as the page writes it: a part of 1 as percents, otherwise seconds."""
    return f"{limit:.0%}".replace("%", " %") if limit < 1 else f"{limit:g} s"


def test_ten_numbers_name_existing_figures():
    named = set()
    for _, _, python, _ in table(MONITORING, "to read"):
        function, *figures = CODE.findall(python) or [""]
        for figure in figures:
            answer = get_type_hints(getattr(stats, re.findall(r"stats\.(\w+)\(\)", function)[0]))["return"]
            [of_list] = getattr(answer, "__args__", (answer,))
            assert hasattr(of_list, figure), figure
            named.add(figure)
    assert len(named) > 8


def test_doctor_is_named_with_its_exit_code_for_warnings():
    assert "pgqueue doctor --fail-on warning" in " ".join(PAGES[MONITORING].split())


# ------------------------------------------------------------------ reasons


def test_troubleshooting_has_every_reason_in_order():
    """`tests/stats/test_explanation.py` compares the sentences with those that `why()` returns."""
    assert [plain(row[0]) for row in table(TROUBLESHOOTING, "reason")] == list(stats.Reason)
