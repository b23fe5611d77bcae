"""The documentation names code, not files: what it names exists, and a move of the code needs no edit of a page.

A page names a class, a function, a statement or a package, such as `Claimer`, `lifecycle.claims.claim()` and CLAIM. In
the internals, the tests look up each of these:

* a name of a class, such as `Claimer` or `Pool.give_up()`; a constant or a statement, such as `TRANSITIONS`;
* a call, such as `call_plan()`; a name after its module or package, such as `lifecycle.claims.claim()`;
* outside of backticks, a statement with an underscore, such as CLAIM_KEYS; in a column `code`, each statement.

Only the tables of packages in the architecture name files of the package.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.code_names import CHECKOUT, PACKAGE, code_names
from tests.documents import CODE, PAGES, prose, table
from tests.rules import for_each

ARCHITECTURE = "docs/internals/architecture.md"
PACKAGES = ("package or module", "package")
"""The headings of the tables that may name files."""
INTERNALS = sorted(page for page in PAGES if page.startswith("docs/internals/"))
NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(\(.*\))?")
STATEMENT = re.compile(r"\b[A-Z]+(?:_[A-Z]+)+\b")
FILE = re.compile(r"(?:\w+/)*\w+\.py|(?:\w+/)+")
INSTANCES = {"Job.objects": "JobQuerySet", "job": "Job", "run": "Run", "task": "Task"}
"""Variables of the examples, and their classes."""
OTHER_NAMES = {
    "of Python": {
        *("Condition", "Exception", "Handler.handle", "Queue.put", "SystemExit", "TimeoutError"),
        *("TypeError", "UUID", "iterator", "lock.acquire", "os._exit", "signal.alarm"),
        "sleep",
    },
    "of Django": {
        *("AppConfig.ready", "BACKEND", "Collector", "SUCCESSFUL", "bulk_create", "close_if_health_check_failed"),
        "create",
        *("enqueue_on_commit", "on_commit"),
    },
    "of PostgreSQL": {
        *("GREATEST", "LEAST", "LISTEN", "now"),
        "statement_timestamp",
    },
    "of another queue": {"FAILURE", "WorkerLostError", "get_stalled_jobs"},
    "a setting of the package, or a variable of the environment": {
        *("PGQUEUE", "PGQUEUE_FAILPOINT", "PGQUEUE_FAULTS_SCHEDULE_SECONDS", "PGQUEUE_PREVIOUS_TREE"),
        "PGQUEUE_POSTGRES_BIN",
    },
    "a signal of the system": {"SIGKILL", "SIGSTOP"},
    "the method of an application that the package calls": {"pgqueue_subcommands"},
    "the example of how to add an option": {"task.label"},
}
"""What the pages name besides the code of this checkout, by the reason."""
FILES_OF_OTHERS = {
    "docs/conf.py": "a file of the documentation",
    "manage.py": "a file of the project",
    "shop/tasks.py": "a file of the example",
    "shop/tenants.py": "a file of the example",
    "0001_initial.py": "a migration, whose name Django stores",
}


def names_of(page: str) -> list[str]:
    """Return what a page names in backticks, and the statements that it names without."""
    text = prose(page)
    quoted = [token for token in CODE.findall(text) if claims_code(token)]
    return [*quoted, *STATEMENT.findall(CODE.sub("", text)), *statements_of_tables(page)]


def claims_code(token: str) -> bool:
    """Return whether a text in backticks has the form of a name of code."""
    found = NAME.fullmatch(token)
    if not found or FILE.fullmatch(token):
        return False
    first = found[1].partition(".")[0]
    is_class = first.strip("_")[:1].isupper() and not first.isupper()
    is_constant = first.isupper() and len(first) > 3
    is_inside = "." in found[1] and is_module(first)
    return is_class or is_constant or is_inside or bool(found[2])


def statements_of_tables(page: str) -> list[str]:
    """Return the words in capitals in the columns whose heading is `code`."""
    words = []
    for block in re.findall(r"(?:^\|.*\n)+", prose(page), re.MULTILINE):
        head, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        for row in rows:
            cells = [cell for heading, cell in zip(head, row, strict=False) if heading == "code"]
            words += [word for cell in cells for word in re.findall(r"\b[A-Z]{3,}\b", CODE.sub("", cell))]
    return words


@cache
def is_module(name: str) -> bool:
    """Return whether some module or package of ours has this name."""
    return name == PACKAGE or any(name in path.removesuffix(".py").split("/") for path in code_names().texts)


def exists(token: str) -> bool:
    """Return whether code of this checkout has the name that a page mentions."""
    name, is_call, _ = token.partition("(")
    for instance, kind in INSTANCES.items():
        name = re.sub(rf"^{re.escape(instance)}\.", f"{kind}.", name)
    parts = name.removeprefix(f"{PACKAGE}.").split(".")
    plain = ".".join(parts)
    return bool(
        code_names().places(plain)
        or code_names().places(f"Settings.{plain}")
        or (is_call and code_names().has_method(plain))
        or code_names("tests/tools/faults").places(plain)
        or is_attribute(parts)
        or is_exported(parts)
    )


def is_other(token: str) -> bool:
    """Return whether the name is listed as one of other code."""
    return any(token.partition("(")[0] in names for names in OTHER_NAMES.values())


def is_attribute(parts: list[str]) -> bool:
    """Return whether the name is an attribute that the methods of a class assign: `Lanes.excluded_tasks`."""
    for place in code_names().places(".".join(parts[:-1])) if len(parts) > 1 else ():
        text = code_names().texts[place.path]
        if any(re.search(rf"\bself\.{parts[-1]}\b", text[start:end]) for start, end in place.spans):
            return True
    return False


def is_exported(parts: list[str]) -> bool:
    """Return whether the name is a package or a module, or what one exports: `stats.queues()`."""
    value: Any = import_module(PACKAGE)
    for place, part in enumerate(parts):
        module = ".".join([PACKAGE, *parts[: place + 1]])
        if hasattr(value, part):
            value = getattr(value, part)
        elif hasattr(value, "__path__") and find_spec(module):
            value = import_module(module)
        else:
            return False
    return True


@for_each(INTERNALS)
def test_page_names_code_that_exists(page):
    """If you rename code, rename it in the documentation. If a page names other code, add that to `OTHER_NAMES`."""
    assert sorted({name for name in names_of(page) if not (exists(name) or is_other(name))}) == []


def test_other_names_are_named_and_not_of_the_package():
    named = {name.partition("(")[0] for page in INTERNALS for name in names_of(page)}
    listed = {name for names in OTHER_NAMES.values() for name in names}
    assert sorted(listed - named) == []
    assert sorted(name for name in listed if exists(name)) == []


@for_each(sorted(PAGES))
def test_page_names_no_file_of_the_package(page):
    """Name the class, the function, the statement or the package instead, so that a move needs no edit."""
    text = without_packages(page)
    files = [token for token in CODE.findall(text) if FILE.fullmatch(token) and token not in FILES_OF_OTHERS]
    assert sorted({token for token in files if is_file_of_package(token)}) == []


def without_packages(page: str) -> str:
    """Return the prose of a page without the tables of packages."""
    if page != ARCHITECTURE:
        return prose(page)
    return re.sub(rf"^\| (?:{'|'.join(PACKAGES)}) \|.*\n(?:\|.*\n)*", "", prose(page), flags=re.MULTILINE)


def is_file_of_package(token: str) -> bool:
    """Return whether a path ends like that of a file or directory of the package."""
    if token.startswith(("tests/", "docs/", "example_project/")):
        return False
    inside = f"/{token.removeprefix(f'{PACKAGE}/')}"
    return any(
        f"/{path}".endswith(inside) or (token.endswith("/") and inside in f"/{path}") for path in code_names().texts
    )


def test_tables_of_packages_name_each_package_and_module():
    rows = [cell for heading in PACKAGES for cell, *_ in table(ARCHITECTURE, heading)]
    named = {name.removesuffix("/") for cell in rows for name in CODE.findall(cell)}
    package = CHECKOUT / PACKAGE
    entries = {entry.name for entry in package.iterdir() if is_part(entry)}
    rooms = {f"worker/{entry.name}" for entry in (package / "worker").iterdir() if entry.is_dir() and is_part(entry)}
    assert sorted(name for name in named if not (package / name).exists()) == []
    assert sorted((entries | rooms) - named) == []


def test_table_of_worker_packages_names_each_module():
    """A new module of the worker must be in the row of its package, and a removed one must not."""
    rows = {cell: set(CODE.findall(modules)) for cell, _, modules in table(ARCHITECTURE, "package")}
    package = CHECKOUT / PACKAGE
    found = {
        f"`{room.relative_to(package)}/`": {entry.name for entry in room.glob("*.py") if is_part(entry)}
        for room in (package / "worker").rglob("*/")
        if is_part(room)
    }
    assert rows == found


def is_part(entry: Path) -> bool:
    """Return whether a file or directory contains code of its own."""
    return (entry.is_dir() and (entry / "__init__.py").exists()) or (
        entry.suffix == ".py" and not entry.name.startswith("__")
    )


def test_renamed_code_is_noticed():
    assert exists("Claimer")
    assert not exists("ClaimerOfOld")
    assert exists("lifecycle.claims.claim()")
    assert not exists("lifecycle.claim_of_old()")
    assert exists("CLAIM_KEYS")
    assert not exists("CLAIM_KEYS_OF_OLD")
    assert exists("Lanes.excluded_tasks")
    assert not exists("Lanes.tasks_of_old")
