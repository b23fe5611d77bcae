"""The summaries in the package, `AGENTS.md` and `llms.txt`: their examples run, and their names exist."""

import importlib
import re
import shlex
import unittest
from typing import Any

import pytest
from django.core import mail

import django_pgqueue
from django_pgqueue import Task, TaskContext
from django_pgqueue.models import Job, JobQuerySet
from django_pgqueue.options import task_options as options
from django_pgqueue.settings import conf
from django_pgqueue.testing import delete_all_jobs, run_jobs
from tests.documents import BLOCK, CODE, TOP
from tests.test_docs import parser_of
from tests.test_docs_examples import shop
from tests.test_words import complaints, texts_of_page

__all__ = ["shop"]

AGENTS, LLMS = TOP / "django_pgqueue/AGENTS.md", TOP / "django_pgqueue/llms.txt"
TEXTS = {"AGENTS.md": AGENTS.read_text(), "llms.txt": LLMS.read_text()}
LINK = re.compile(r"^- \[[^]]+\]\(([^)]+)\): .+$", re.MULTILINE)
OWNERS: dict[str, Any] = {
    "job": Job,
    "context": TaskContext,
    "task": Task,
    "transaction": importlib.import_module("django.db.transaction"),
}
OF_DJANGO = {"INSTALLED_APPS", "tasks", "await", "async def", "dead", "manage.py", "PGQUEUE", "dj-pgqueue", "shop"}
"""Words in code font that are not names of this package."""
OF_PYTHON = [importlib.import_module(name) for name in ("builtins", "datetime", "decimal", "pathlib", "uuid")]


def examples(name: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(TEXTS[name]) if kind == "python"]


def is_known(code: str) -> bool:
    """Return whether a piece of code in the prose names something that exists."""
    code = code.removeprefix("await ").removeprefix("help(").strip('"')
    if code in OF_DJANGO or (TOP / code).is_file():
        return True
    if insert := re.fullmatch(rf"INSERT INTO {Job._meta.db_table} \((.+)\)", code):
        return set(insert[1].split(", ")) <= {field.column for field in Job._meta.concrete_fields}
    if setting := re.fullmatch(r'PGQUEUE\["(\w+)"\]', code):
        return setting[1] in conf.OPTIONS
    first, _, rest = re.sub(r"\(.*", "", code).rstrip(")").partition(".")
    if first == "django_pgqueue":
        return not rest or resolves(rest)
    if first in OWNERS and rest:
        return hasattr(OWNERS[first], rest)
    places = (django_pgqueue, Task, JobQuerySet, importlib.import_module("django_pgqueue.testing"), *OF_PYTHON)
    return first in options.TaskOptions.__annotations__ or any(hasattr(place, first) for place in places)


def resolves(path: str) -> bool:
    """Return whether a dotted path below the package is a module, or a name in one."""
    module, _, name = path.rpartition(".")
    return hasattr(importlib.import_module(f"django_pgqueue.{module}".rstrip(".")), name)


@pytest.mark.parametrize("name", TEXTS)
def test_summary_examples_run_and_so_do_their_jobs(shop, name):
    names: dict[str, Any] = {"__name__": "shop.tasks"}
    for block in examples(name):
        exec(compile(block, name, "exec"), names)  # noqa: S102 -- our own text
    assert run_jobs(raising=True) >= 1
    assert not Job.objects.exclude(state__in=["succeeded", "cancelled"]).exists()
    if name == "AGENTS.md":
        assert [message.subject for message in mail.outbox] == ["Your receipt"] * 2
        names["close_order"].enqueue(names["order"].pk)
        run_jobs(raising=True)
        assert Job.objects.get(task_name="shop.tasks.count_orders").result == 0
        for path, state in (("", "dead"), ("a.part", "ready"), ("a.pdf", "succeeded")):
            job = names["convert"].enqueue(path)
            run_jobs()
            job.refresh_from_db()
            assert job.state == state


def test_agents_page_example_of_a_test_passes(shop):
    names: dict[str, Any] = {"__name__": "shop.tasks"}
    for block in examples("AGENTS.md"):
        exec(compile(block, "AGENTS.md", "exec"), names)  # noqa: S102 -- our own text
    delete_all_jobs()
    result = unittest.defaultTestLoader.loadTestsFromTestCase(names["ReceiptTest"]).run(unittest.TestResult())
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])


@pytest.mark.parametrize("name", TEXTS)
def test_summary_names_in_prose_exist(name):
    codes = CODE.findall(BLOCK.sub("", TEXTS[name]))
    assert len(codes) > 10
    unknown = [code for code in codes if not code.startswith("manage.py ") and not is_known(code)]
    assert unknown == []


@pytest.mark.parametrize("name", TEXTS)
def test_summary_commands_are_valid(name):
    lines = [line for kind, text in BLOCK.findall(TEXTS[name]) if kind == "sh" for line in text.splitlines()]
    lines += [f"python {code}" for code in CODE.findall(BLOCK.sub("", TEXTS[name])) if code.startswith("manage.py ")]
    assert lines
    for line in lines:
        words = shlex.split(line)
        if words[1] == "manage.py" and words[2] in ("runworker", "pgqueue"):
            parser_of(words[2]).parse_args(words[3:])
        else:
            assert words[1:3] in (["install", "dj-pgqueue"], ["manage.py", "migrate"], ["manage.py", "check"]), line


@pytest.mark.parametrize(
    "known",
    [
        "job.explode",
        "PGQUEUE['X']",
        "INSERT INTO pgqueue_job (task)",
        "django_pgqueue.control.queues.explode",
        "explode()",
    ],
)
def test_unknown_names_are_found(known):
    assert not is_known(known)


def test_site_summary_links_to_existing_pages():
    targets = LINK.findall(TEXTS["llms.txt"])
    assert len(targets) >= 20
    assert [target for target in targets if not (TOP / "docs" / target).with_suffix(".md").is_file()] == []
    assert "](" not in LINK.sub("", TEXTS["llms.txt"]), "a link has another form"


def test_package_page_has_no_links_because_the_wheel_has_no_docs():
    assert "](" not in TEXTS["AGENTS.md"]
    assert len(TEXTS["AGENTS.md"].splitlines()) <= 200, "it is one page"


@pytest.mark.parametrize("path", [AGENTS, LLMS], ids=lambda path: path.name)
def test_summary_is_written_in_plain_english(path):
    assert complaints(path.name, texts_of_page(path)) == []


def test_site_build_copies_the_summary():
    assert 'html_extra_path = ["../django_pgqueue/llms.txt"]' in (TOP / "docs/conf.py").read_text()


NOT_NEEDED_TO_WRITE_CODE = {
    *("acting_on_jobs", "bulk_acts", "deployment", "docker", "heroku", "kubernetes", "systemd"),
    *("opentelemetry", "sentry", "checks"),
}


@pytest.mark.parametrize("folder", ["start", "guides", "production", "reference"])
def test_site_summary_links_each_page_of_these_folders(folder):
    linked = {target.removesuffix(".html") for target in LINK.findall(TEXTS["llms.txt"])}
    pages = {f"{folder}/{path.stem}" for path in (TOP / "docs" / folder).glob("*.md")}
    assert {page for page in pages - linked if page.partition("/")[2] not in NOT_NEEDED_TO_WRITE_CODE} == set()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("capability", ["workflow", "batch", "undo", "remote", "archive", "step", "chunk", "schedule"])
def test_summary_names_each_capability(name, capability):
    assert capability in TEXTS[name].lower()
