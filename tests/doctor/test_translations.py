"""The doctor in other languages: each sentence of a finding is in the language of the reader."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.utils import translation

from django_pgqueue.doctor import examine
from django_pgqueue.doctor.access_checks import PARTLY, PURPOSES, WORDS
from tests.admin.test_languages import pseudo_language as pseudo_language
from tests.rules import for_each

from .conftest import change_alias, run_sql

FILES = sorted((Path(__file__).parents[2] / "django_pgqueue/doctor").glob("*.py"))
GETTEXT = {"_", "gettext_lazy", "ngettext", "pgettext_lazy"}
SENTENCE = re.compile(r"[a-z]+ [a-z]+|^[A-Z][a-z]+ .*\.$")
NAMES = {*PURPOSES, "read committed"}
"""Texts that are keys of the data, or values of PostgreSQL."""
CODE = ("/* pgqueue:", "manage.py ")


def strings(node: ast.AST) -> Iterator[str]:
    """Yield the strings below a node that no gettext function translates, without docstrings and `reports`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call):
        function = ast.unparse(node.func)
        if function in GETTEXT:
            assert isinstance(node.args[0], ast.Constant), f"{ast.unparse(node)}: no program can find this text"
            return
        if function == "check":
            children = [*node.args[2:]]
    for child in children:
        yield from strings(child)


@for_each(FILES)
def test_sentences_of_findings_are_translatable(path):
    texts = [text for text in strings(ast.parse(path.read_text())) if SENTENCE.search(text)]
    assert [text for text in texts if text not in NAMES and not text.startswith(CODE)] == []


def test_purposes_of_grants_have_a_sentence_and_words():
    assert PARTLY.keys() == WORDS.keys() == PURPOSES.keys()


def is_translated(text: str) -> bool:
    return re.search("[ǻȇȉǿȗẏǺȆȈǾȖẎ]", text) is not None


def test_findings_are_in_the_language_of_the_reader(db, pseudo_language):
    run_sql("ALTER TABLE pgqueue_job RENAME COLUMN worker_id TO gone")  # a check that cannot look has a sentence too
    with translation.override("de"):
        findings = examine()
    assert [finding for finding in findings if not (is_translated(finding.what) and is_translated(finding.why))] == []


def test_finding_of_an_unreachable_database_is_translated(alias: str, pseudo_language: Any) -> None:
    change_alias(alias, NAME="no_such_database")
    with translation.override("de"):
        [finding] = examine(alias)
    assert is_translated(finding.what) and is_translated(finding.why) and is_translated(finding.fix)
