"""What a warm plain job costs, in counts that no other load changes, compared with the recorded counts."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import pytest

from tests.tools.benchmarks.counts import recorded
from tests.tools.benchmarks.counts.figures import Found
from tests.tools.benchmarks.counts.private_server import Program, has_extensions, private_server

pytestmark = pytest.mark.slow
HAS_MONITORING = sys.version_info >= (3, 12)


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


def test_plain_job_calls_and_statements_as_recorded(program):
    check(program.count(meter="calls"), "calls")


@pytest.mark.skipif(not HAS_MONITORING, reason="sys.monitoring needs Python 3.12")
def test_plain_job_bytecode_as_recorded(program):
    check(program.count(meter="own_instructions", alone=True), "instructions")
