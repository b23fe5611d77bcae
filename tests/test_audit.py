""".ci/audit.py: what is vulnerable fails, what nobody answered for is said."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci/audit.py"
FLAW = {"id": "CVE-2099-1", "fix_versions": ["2"], "aliases": [], "description": "…"}


@pytest.fixture(scope="module")
def audit():
    pytest.importorskip("packaging")
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(**by_name):
    return json.dumps({"dependencies": [{"name": name, **told} for name, told in by_name.items()], "fixes": []})


def test_what_users_get_is_asked_about_and_nothing_else(audit):
    asked = audit.installed()
    assert {"django", "psycopg", "psycopg-binary", "asgiref", "sqlparse", "django-environ"} <= set(asked)
    assert not {"pytest", "ruff", "pip-audit", "dj-pgqueue", "hypothesis"} & set(asked)
    assert all(asked.values())


def test_no_finding_passes(audit):
    told = answer(Django={"version": "1", "vulns": []}, psycopg_binary={"version": "3", "vulns": []})
    assert audit.verdict({"django", "psycopg-binary"}, told) == (0, ["2 of 2 packages audited"])


def test_a_finding_fails_also_beside_one_without_an_answer(audit):
    told = answer(django={"version": "1", "vulns": [FLAW]}, psycopg={"skip_reason": "not found"})
    code, lines = audit.verdict({"django", "psycopg"}, told)
    assert code == 1
    assert lines[0] == "VULNERABLE: django 1: CVE-2099-1"
    assert lines[-1] == "NOT AUDITED, the advisory service gave no answer: psycopg"


@pytest.mark.parametrize(
    "told", ["", "no JSON", "[]", "{}", '{"dependencies": []}', answer(django={"skip_reason": "x"})]
)
def test_no_answer_is_no_finding_and_no_all_clear(audit, told):
    code, lines = audit.verdict({"django"}, told)
    assert code == 0
    assert lines == ["0 of 1 packages audited", "NOT AUDITED, the advisory service gave no answer: django"]
