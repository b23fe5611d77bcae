"""What a warm plain job costs, in counts that no other load changes, compared with the recorded counts."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Final

import pytest

from tests.tools.benchmarks.counts import figures, recorded
from tests.tools.benchmarks.counts.figures import Found
from tests.tools.benchmarks.counts.private_server import Program, has_extensions, private_server

pytestmark = pytest.mark.slow
HAS_MONITORING = sys.version_info >= (3, 12)
CALLS_BEFORE: Final = {
    "thread": 46.9,
    "coroutine": 42.9,
    "atomic": 79.7,
    "orm": 56.9,
    "enqueue": 26,
    "enqueue_many": 7.31,
}
INSTRUCTIONS_BEFORE: Final = {
    "thread": 934,
    "coroutine": 947,
    "atomic": 1_533,
    "orm": 1_134,
    "enqueue": 565,
    "enqueue_many": 172.2,
}
"""The counts of the package for one job at commit b5a8acc, before most of the capabilities that such a job lacks."""


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    """Return the counted program on a private server."""
    if not has_extensions():
        pytest.skip("this PostgreSQL was installed without the extension pg_walinspect")
    with private_server() as cluster:
        program = Program(cluster)
        program.make_tables()
        yield program


def check(found: Found, name: str) -> None:
    """Fail if a count has risen above the recorded one, and warn if one has fallen."""
    if not recorded.is_recorded(found, name):
        pytest.skip(f"no counts are recorded for {found.versions}: run bin/bench --counts --record")
    changed = recorded.changes(found, name)
    if any(change.is_rise for change in changed):
        pytest.fail(recorded.message(changed), pytrace=False)
    if changed:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(recorded.message(changed), stacklevel=1)


@pytest.fixture(scope="module")
def calls(program: Program) -> Found:
    """Return the calls and the statements of each form."""
    return program.count(meter="calls")


def test_plain_job_calls_and_statements_as_recorded(calls):
    check(calls, "calls")


def test_plain_job_enters_few_files_and_functions(calls):
    """A newcomer can read what happens to one job. A feature that the job does not use is not part of it."""
    entered = figures.entered(calls, ["thread", "enqueue"])
    assert entered["thread"]["files"] <= 45 and entered["thread"]["functions"] <= 200
    assert entered["enqueue"]["files"] <= 12


def test_plain_job_calls_less_than_before_its_capabilities(calls):
    """A job pays nothing for what it does not use."""
    found = {form: calls.of_program(form, "calls")["calls"] for form in CALLS_BEFORE}
    assert {form: count for form, count in found.items() if count >= CALLS_BEFORE[form]} == {}


@pytest.fixture(scope="module")
def instructions(program: Program) -> Found:
    """Return the bytecode instructions of each form."""
    return program.count(meter="own_instructions", alone=True)


@pytest.mark.skipif(not HAS_MONITORING, reason="sys.monitoring needs Python 3.12")
def test_plain_job_bytecode_as_recorded(instructions):
    check(instructions, "instructions")


@pytest.mark.skipif(not HAS_MONITORING, reason="sys.monitoring needs Python 3.12")
def test_plain_job_bytecode_less_than_before_capabilities(instructions):
    found = {form: instructions.of_program(form, "instructions")["instructions"] for form in INSTRUCTIONS_BEFORE}
    assert {form: count for form, count in found.items() if count >= INSTRUCTIONS_BEFORE[form]} == {}
