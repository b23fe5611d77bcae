"""The API reference against the package, and the counts that the documentation states against what they count."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import django_pgqueue
from tests.documents import BLOCK, PAGES, prose
from tests.rules import for_each
from tests.tools.faults import mutation as of_faults
from tests.tools.mutation.runner import MUTANTS

API = "docs/reference/api.md"
RELIABILITY = "docs/internals/reliability.md"
FAULT_RESULTS = "docs/internals/fault_results.md"


# ------------------------------------------------------------------ the API reference


class Entry(NamedTuple):
    """One directive of the page: the module and the name that it describes, and the members that it lists."""

    module: str
    name: str
    members: tuple[str, ...]


def entries() -> Iterator[Entry]:
    """Yield what each directive of autodoc on the page describes."""
    module = ""
    text = "\n".join(block for _, block in BLOCK.findall(PAGES[API].replace("```{eval-rst}", "```rst")))
    for kind, target, options in re.findall(r"^\.\. ([\w:]+):: ([\w.]+).*\n((?:   .*\n|\n)*)", text, re.MULTILINE):
        members = re.findall(
            r"   :members: (.+\n(?:     +[^:].*\n)*)", options
        )  # a long list continues on the next line
        names = tuple(name.strip() for name in members[0].split(",")) if members else ()
        if kind in ("currentmodule", "automodule"):
            module = target
            yield from (Entry(module, name, ()) for name in names)
        else:
            within, _, name = target.rpartition(".")
            yield Entry(within or module, name, names)


ENTRIES = list(entries())


def test_reference_has_entries_of_each_public_module():
    assert len(ENTRIES) > 50
    modules = {"models", "control", "middleware", "backend", "health", "testing"}
    assert {entry.module for entry in ENTRIES} >= {"django_pgqueue", *(f"django_pgqueue.{name}" for name in modules)}


@for_each(ENTRIES)
def test_reference_entry_exists_with_its_members(entry):
    described = getattr(importlib.import_module(entry.module), entry.name)
    fields = set(getattr(described, "__annotations__", ()))
    assert [name for name in entry.members if not hasattr(described, name) and name not in fields] == []


def public(module: str) -> set[str]:
    return set(importlib.import_module(module).__all__)


def test_reference_names_of_the_package_are_public_and_the_reverse():
    described = {entry.name for entry in ENTRIES if entry.module == "django_pgqueue"}
    assert described == set(django_pgqueue.__all__)


@pytest.mark.parametrize("module", ["django_pgqueue.testing", "django_pgqueue.models", "django_pgqueue.backend"])
def test_reference_names_of_module_are_public(module):
    described = {entry.name for entry in ENTRIES if entry.module == module}
    assert described
    assert described <= public(module)


def test_reference_has_all_names_of_the_testing_kit():
    assert {entry.name for entry in ENTRIES if entry.module == "django_pgqueue.testing"} == public(
        "django_pgqueue.testing"
    )


def test_reference_of_stats_has_all_public_names():
    page = PAGES["docs/reference/stats.md"]
    described = set(re.findall(r"^\.\. auto(?:function|class):: (\w+)", page, re.MULTILINE))
    assert described == public("django_pgqueue.stats")
    for name, members in re.findall(r"autoclass:: (\w+)\(\)\n   :members: (.+)", page):
        of_class = getattr(importlib.import_module("django_pgqueue.stats"), name)
        assert [member for member in members.split(", ") if not hasattr(of_class, member)] == []


# ------------------------------------------------------------------ counts


def number(pattern: str) -> int:
    [found] = re.findall(pattern, " ".join(prose(RELIABILITY).split()))
    return int(found.replace(",", ""))


def test_page_counts_no_more_mutants_than_there_are():
    assert 0 <= len(MUTANTS) - number(r"more than ([\d,]+) defects \(mutants\)") < 100


def test_page_lists_the_mutants_of_the_fault_suite():
    listed = PAGES[FAULT_RESULTS].partition("## Does the suite notice defects?")[2]
    noticed_by = [names.replace(" ", "") for names in re.findall(r"^- .* \((F\d[^()]*)\)$", listed, re.MULTILINE)]
    assert sorted(noticed_by) == sorted(broken.faults for broken in of_faults.MUTANTS)
