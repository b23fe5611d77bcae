"""`.ci/audit.py`: a vulnerable package fails the audit, and a package without an answer is reported."""

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
    return json.dumps({"dependencies": [{"name": name, **fields} for name, fields in by_name.items()], "fixes": []})


def test_installed_returns_only_packages_of_users(audit):
    packages = audit.installed()
    assert {"django", "psycopg", "psycopg-binary", "asgiref", "sqlparse", "django-environ"} <= set(packages)
    assert not {"pytest", "ruff", "pip-audit", "dj-pgqueue", "hypothesis"} & set(packages)
    assert all(packages.values())


def test_verdict_without_vulnerability_passes(audit):
    answers = answer(Django={"version": "1", "vulns": []}, psycopg_binary={"version": "3", "vulns": []})
    assert audit.verdict({"django", "psycopg-binary"}, answers) == (0, ["2 of 2 packages audited"])


def test_verdict_vulnerable_package_fails(audit):
    answers = answer(django={"version": "1", "vulns": [FLAW]}, psycopg={"skip_reason": "not found"})
    code, lines = audit.verdict({"django", "psycopg"}, answers)
    assert code == 1
    assert lines[0] == "VULNERABLE: django 1: CVE-2099-1"
    assert lines[-1] == "NOT AUDITED, the advisory service gave no answer: psycopg"


@pytest.mark.parametrize(
    "told", ["", "no JSON", "[]", "{}", '{"dependencies": []}', answer(django={"skip_reason": "x"})]
)
def test_verdict_without_answer_reports_package_as_not_audited(audit, told):
    code, lines = audit.verdict({"django"}, told)
    assert code == 0
    assert lines == ["0 of 1 packages audited", "NOT AUDITED, the advisory service gave no answer: django"]
