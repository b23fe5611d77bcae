"""The documents: their examples run, their links lead somewhere, their tables and drawings say what the code does."""

import ast
import importlib
import itertools
import re
import sys
import unittest
from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.conf import settings
from django.core import mail
from django.core.management import BaseCommand, load_command_class
from django.db import connection
from django.dispatch import Signal
from django.test import override_settings

import django_pgqueue
from django_pgqueue import conf, registry, signals, states
from django_pgqueue.models import Job
from django_pgqueue.states import GONE, TRANSITIONS, Act, State
from django_pgqueue.task import Task
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.supervision.supervisor import KILL_AFTER_GRACE_SECONDS
from tests.tools.benchmarks import cli

TOP = Path(__file__).parents[1]
IN_DOCS = [path for path in TOP.glob("docs/**/*.md") if "_build" not in path.parts]
FILES = [TOP / "README.md", TOP / "CONTRIBUTING.md", TOP / ".github/SECURITY.md", *sorted(IN_DOCS)]
PAGES = {str(path.relative_to(TOP)): path.read_text() for path in FILES}
TUTORIAL = "docs/start/tutorial.md"
"""It has a project of its own: see `tests/process/test_tutorial.py`."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]+\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
OF_THE_SUITES = {
    *("--list", "--only", "--quick", "--jobs", "--json", "--markdown", "--seed", "--soak", "--keep"),
    *("--deep", "--stateful-examples", "--python", "--heartbeat-timeout"),
}
"""Options of `bin/faults`, of the model, of the tests and of the comparison with other queues."""
FORBIDDEN = re.compile(
    r"exactly[- ]once[- ]delivery|delivered exactly once|\bblazing|\bpypi\b|files\.pythonhosted", re.I
)
ORDER = """
from django.db import models
class Order(models.Model):
    email = models.EmailField()
"""


def blocks(page: str, language: str = "python") -> list[str]:
    return [text for kind, text in BLOCK.findall(PAGES[page]) if kind == language]


def file_of(block: str) -> str | None:
    """The file of the example's app that a block belongs to, as its first line says."""
    found = re.match(r"# (shop/\w+\.py)\n", block)
    return found and found[1]


def prose(page: str) -> str:
    return BLOCK.sub("", PAGES[page])


def table(page: str, heading: str) -> list[list[str]]:
    """The rows of the tables on a page whose first column is headed so, cell by cell."""
    rows, inside = [], False
    for line in prose(page).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            inside = False
        elif cells[0] == heading:
            inside = True
        elif inside and not set(line) <= set("|- "):
            rows.append(cells)
    return rows


def plain(cell: str) -> str:
    return cell.strip("`")


# ------------------------------------------------------------------ the examples run


@pytest.fixture
def shop(tmp_path, monkeypatch, db):
    """The app of the examples, from the documents' own text, installed in this project; its tables go with the test."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "models.py").write_text(ORDER)
    texts: dict[str, str] = {}
    for block in itertools.chain.from_iterable(blocks(page) for page in PAGES if page != TUTORIAL):
        if name := file_of(block):
            texts[name] = texts.get(name, "") + block
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    # As any project on Django 6.1 has it; earlier ones go by EMAIL_BACKEND, which the test runner has replaced too.
    mailers = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
    with override_settings(
        INSTALLED_APPS=[*settings.INSTALLED_APPS, "shop"], DEFAULT_FROM_EMAIL="shop@example.com", MAILERS=mailers
    ):
        with connection.schema_editor() as editor:
            editor.create_model(apps.get_model("shop", "Order"))
        yield importlib.import_module("shop")
    apps.all_models.pop("shop", None)
    apps.clear_cache()
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def test_the_examples_are_where_a_worker_finds_them(shop):
    """Nothing here imported `shop.tasks`: the app did, as in any project, when the apps were made ready."""
    assert registry.get("shop.tasks.send_receipt") is not None
    assert registry.get("shop.tasks.send_bill") is registry.get("shop.tasks.send_invoice")


def test_the_readme_s_own_test_passes(shop):
    suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module("shop.tests"))
    result = suite.run(unittest.TestResult())
    assert result.testsRun == 1
    assert result.errors == result.failures == []


def test_the_tests_of_the_page_on_testing_pass(shop):
    suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module("shop.receipt_tests"))
    result = suite.run(unittest.TestResult())
    assert result.testsRun == 3
    assert result.errors == result.failures == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/coming_from/")])
def test_the_task_after_a_move_runs(shop, page):
    """Now and in three days, by the page's own code."""
    [block] = re.findall(r"^<!-- ours -->\n```python\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "shop.tasks"}
    exec(compile(block, page, "exec"), names)  # noqa: S102 -- our own text
    names["place_order"]("ada@example.com")
    assert run_jobs(raising=True) == 1
    assert run_jobs(until=timedelta(days=4), raising=True) == 1
    assert len(mail.outbox) == 2


def test_the_readme_s_order_is_not_there_without_its_job(shop):
    orders, models = importlib.import_module("shop.orders"), importlib.import_module("shop.models")
    with override_settings(PGQUEUE={"MAX_ARGUMENTS_BYTES": 1}), pytest.raises(ValueError, match="MAX_ARGUMENTS_BYTES"):
        orders.place_order("ada@example.com")
    assert not models.Order.objects.exists()
    orders.place_order("ada@example.com")
    assert (models.Order.objects.count(), Job.objects.count()) == (1, 1)


def test_the_examples_of_the_page_on_tasks_run_one_after_another(shop):
    tasks = importlib.import_module("shop.tasks")
    names = dict(vars(tasks), order=tasks.Order.objects.create(email="ada@example.com"))
    done = 0
    for block in blocks("docs/guides/tasks.md"):
        if file_of(block) is None:
            exec(compile(block, "docs/guides/tasks.md", "exec"), names)  # noqa: S102 -- our own text
            done += 1
    assert done >= 5
    assert async_to_sync(names["view"])("grace@example.com")
    for call in (tasks.announce, tasks.touch, tasks.send_invoice):
        call.enqueue(1)
    tasks.export.enqueue()
    assert run_jobs(raising=True) >= 5
    assert set(Job.objects.filter(task_name="shop.tasks.export").values_list("state", flat=True)) == {"succeeded"}
    assert not Job.objects.filter(task_name="shop.tasks.touch").exists()


@pytest.mark.parametrize(("email", "state"), [(None, State.CANCELLED), ("", State.DEAD)])
def test_the_example_of_directives_ends_as_it_says(shop, email, state):
    tasks = importlib.import_module("shop.tasks")
    order_id = 0 if email is None else tasks.Order.objects.create(email=email).pk
    job = tasks.deliver.enqueue(order_id)
    run_jobs()
    job.refresh_from_db()
    assert job.state == state


def test_the_examples_of_the_page_on_retries_find_what_died_and_bring_it_back(shop, capsys):
    tasks, receivers = importlib.import_module("shop.tasks"), importlib.import_module("shop.receivers")
    bring_back, count = [block for block in blocks("docs/guides/retries.md") if file_of(block) is None]

    def fail(order_id):
        raise ConnectionError

    tasks.charge.func.__code__ = fail.__code__  # the page's is empty, and a task is frozen
    tasks.charge.using(max_attempts=1).enqueue(1)
    with override_settings(ADMINS=["ada@example.com"] if django.VERSION >= (6, 0) else [("Ada", "ada@example.com")]):
        run_jobs()
    assert receivers.tell
    assert [message.subject for message in mail.outbox][-1].endswith("shop.tasks.charge is dead")
    exec(count, {})  # noqa: S102 -- our own text
    assert capsys.readouterr().out == "shop.tasks.charge builtins.ConnectionError 1\n"
    exec(bring_back, {})  # noqa: S102 -- our own text
    assert Job.objects.get(task_name="shop.tasks.charge").state == State.READY


def test_the_examples_of_the_page_on_progress_tell_and_wait(shop, capsys):
    tasks = importlib.import_module("shop.tasks")
    for name in ("ada", "grace"):
        tasks.Order.objects.create(email=f"{name}@example.com")
    show, wait = [block for block in blocks("docs/guides/progress_and_results.md") if file_of(block) is None]
    names = dict(vars(tasks))
    with override_settings(PGQUEUE={"IMMEDIATE": True}):
        exec(compile(show, "docs/guides/progress_and_results.md", "exec"), names)  # noqa: S102 -- our own text
        exec(compile(wait, "docs/guides/progress_and_results.md", "exec"), names)  # noqa: S102 -- our own text
        assert capsys.readouterr().out.startswith("2.0 2.0 grace@example.com 20")
        assert names["report"]() == 2
        assert tasks.number_orders.enqueue().progress.done == 2


def test_the_examples_of_the_page_on_middleware_carry_a_tenant_and_a_trace(shop):
    tasks, middleware = importlib.import_module("shop.tasks"), importlib.import_module("shop.middleware")
    call, _ = [block for block in blocks("docs/guides/middleware.md") if file_of(block) is None]
    names = dict(vars(tasks))
    with override_settings(PGQUEUE={"MIDDLEWARE": ["shop.middleware.Tenancy", "shop.middleware.Tracing"]}):
        exec(compile(call, "docs/guides/middleware.md", "exec"), names)  # noqa: S102 -- our own text
        token = middleware.tenant.set("grace")
        spans = middleware.traceparent.set("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        second = tasks.whose.enqueue()
        middleware.traceparent.reset(spans)
        middleware.tenant.reset(token)
        assert second.headers["traceparent"] == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        assert len(names["job"].headers["traceparent"]) == 55
        run_jobs(raising=True)
    assert list(Job.objects.order_by("pk").values_list("result", flat=True)) == ["acme", "grace"]
    child = middleware.child_of(second.headers["traceparent"])
    assert child.startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert child != second.headers["traceparent"]


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_is_python(page):
    for block in blocks(page):
        ast.parse(block)


def test_the_example_of_settings_is_without_a_fault():
    [block] = blocks("docs/reference/settings.md")
    names: dict[str, object] = {}
    exec(compile(block, "docs/reference/settings.md", "exec"), names)  # noqa: S102 -- our own text
    assert conf.problems(names["PGQUEUE"]) == []


# ------------------------------------------------------------------ links, paths, words


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    for target in LINK.findall(prose(page)):
        assert "://" not in target, f"{page} leads outside: {target}"
        path, _, anchor = target.partition("#")
        leads_to = (TOP / page).parent / path if path else TOP / page
        assert leads_to.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(leads_to.read_text()), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_is_named_is_there(page):
    ours = {path.name for path in TOP.iterdir()}
    package = TOP / "django_pgqueue"
    for code in CODE.findall(prose(page)):
        word = code.split()[0].removeprefix("./").partition("::")[0]
        if "/" in word and word.split("/")[0] in ours:
            assert (TOP / word).exists(), f"{page}: {code}"
        elif re.fullmatch(r"\w+\.py|\w+/", word) and word != "manage.py":
            assert (package / word).exists(), f"{page}: {code}"


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_is_named_is_there(page):
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGES[page]):
        assert f"def {name}(" in (TOP / path).read_text(), f"{page}: {path}::{name}"


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_no_page_promises_what_nobody_can_keep(page):
    assert not FORBIDDEN.search((TOP / page).read_text())


def test_the_index_leads_to_every_page():
    linked = set(LINK.findall(PAGES["docs/index.md"]))
    assert linked >= {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} - {"index.md"}


def test_holes_are_reported_where_somebody_reads_it():
    policy = PAGES[".github/SECURITY.md"]
    assert "private vulnerability reporting" in policy
    assert "@" not in policy, "an address that nobody may read"
    assert {".github/SECURITY.md", "docs/production/security.md"} <= set(LINK.findall(PAGES["README.md"]))


def test_each_threat_is_held_by_something():
    rows = table("docs/production/security.md", "threat")
    assert len(rows) >= 10
    assert all(done and CODE.search(held) for _, done, held in rows)


def test_the_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) <= 180


# ------------------------------------------------------------------ what the code says too


def test_the_drawing_has_exactly_the_edges_of_the_code():
    [drawing] = blocks("docs/concepts/life_cycle.md", "mermaid")
    edges = re.findall(r"^ +(\S+) --> (\S+) : (.+)$", drawing, re.MULTILINE)
    assert len(edges) == len(drawing.strip().splitlines()) - 1, "a line that is no edge"
    drawn = {(end(before), Act(act), end(after)) for before, after, acts in edges for act in acts.split(", ")}
    coded = {(before, act, after) for before, acts in TRANSITIONS.items() for act in acts for after in acts[act]}
    assert drawn == coded


def end(word: str) -> State | None:
    return GONE if word == "[*]" else State(word)


def test_the_table_has_every_act_and_outcome():
    assert [plain(row[0]) for row in table("docs/concepts/life_cycle.md", "act")] == list(Act)
    assert {plain(row[0]) for row in table("docs/concepts/life_cycle.md", "outcome")} == set(states.Outcome)


def test_every_setting_is_there_with_its_default():
    rows = table("docs/reference/settings.md", "key")
    told = {plain(key): ast.literal_eval(plain(default)) for key, _, default, _ in rows}
    assert len(told) == len(rows)
    assert told == {name: option.default for name, option in conf.OPTIONS.items()}
    assert all(unit and meaning for _, unit, _, meaning in rows)
    kept = {plain(row[0]): float(row[2].split("`")[1]) for row in table("docs/reference/settings.md", "state")}
    assert kept == conf.DEFAULT_RETENTION


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_that_is_named_is_one(page):
    assert set(re.findall(r'PGQUEUE\["(\w+)"\]', PAGES[page])) <= set(conf.OPTIONS)


def test_every_option_of_a_task_is_there():
    told = {plain(row[0]) for row in table("docs/guides/tasks.md", "option")}
    made_elsewhere = {
        "func",
        "signature",
        "is_async",
        "run_after",
        "timeout_seconds",
        "adapter",
        "headers",
    }  # run_after and headers are using()'s alone
    assert told == set(Task.__dataclass_fields__) - made_elsewhere | {"schedule"}  # it is the decorator's alone


def test_every_signal_is_there():
    told = {plain(row[0]) for row in table("docs/guides/tasks.md", "signal")}
    assert told == {name for name, value in vars(signals).items() if isinstance(value, Signal)}


def test_every_public_name_is_explained():
    text = "\n".join(PAGES.values())
    unexplained = {"QueueError", "StatementTimeout", "Outcome", "State", "Task"}
    assert {n for n in django_pgqueue.__all__ if not re.search(rf"\b{n}\b", text)} <= unexplained


def own_options(command: str, *subcommand: str) -> set[str]:
    """The long options of a management command, without those that every command has."""
    parser = load_command_class("django_pgqueue", command).create_parser("manage.py", command)
    for name in subcommand:
        [choices] = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
        parser = choices[name]
    return long_options(parser) - long_options(BaseCommand().create_parser("manage.py", "any"))


def long_options(parser: ArgumentParser) -> set[str]:
    return {text for action in parser._actions for text in action.option_strings if text.startswith("--")}


def test_every_option_of_the_worker_is_there():
    assert {plain(row[0]) for row in table("docs/production/worker.md", "option")} == own_options("runworker")


@pytest.mark.parametrize("page", PAGES)
def test_every_option_that_is_named_is_one(page):
    known = own_options("runworker") | own_options("pgqueue", "worker") | own_options("pgqueue", "prune")
    for subcommand in ("health", "run", "pause", "resume", "drain", "clear"):
        known |= own_options("pgqueue", subcommand)
    known |= {"--verbosity", "--deploy"}  # Django's own
    of_others = {
        "README.md": {"--serve", "--matrix", "--quick"},
        "CONTRIBUTING.md": {"--fix", "--quick", "--list", "--matrix", "--write"},
        TUTORIAL: {"--rm", "--detach", "--publish", "--env"},  # Docker's
        "docs/internals/reliability.md": OF_THE_SUITES,
        "docs/internals/performance.md": long_options(cli.make_parser()),
    }
    known |= of_others.get(page, set())
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGES[page])) <= known


@pytest.mark.parametrize("page", ["README.md", "docs/production/deployment.md"])
def test_what_stops_a_worker_waits_long_enough(page):
    waits = re.findall(r"(?:TimeoutStopSec=|stop_grace_period: |^)(\d+)s?$", PAGES[page], re.MULTILINE)
    assert len(waits) == 2
    assert all(int(seconds) > conf.Settings().GRACE + KILL_AFTER_GRACE_SECONDS for seconds in waits)
