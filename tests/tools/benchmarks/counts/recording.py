"""Record the counts that CI compares, for each version of Python and of PostgreSQL that this machine has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from example_project.embedded.server import BIN_VARIABLE
from tests.tools.benchmarks.counts import recorded
from tests.tools.benchmarks.counts.private_server import CHECKOUT, Program, private_server
from tests.tools.benchmarks.telling import say

OLDEST_SERVER: Final = Path("/usr/lib/postgresql/15/bin")


def record_all() -> None:
    """Record the counts on each Python with the embedded server, and those of the oldest supported server.

    `bin/matrix --environment 3.12` makes an environment of another Python.
    """
    before = recorded.read()
    for number, programs in enumerate((None, OLDEST_SERVER)):
        if programs is not None and not programs.exists():
            say(f"NOT RECORDED: there is no PostgreSQL in {programs}")
            continue
        with _server_programs(programs), private_server() as cluster:
            pythons = _pythons() if number == 0 else [sys.executable]
            Program(cluster).make_tables()
            for python in pythons:
                _record(Program(cluster, python))
    for section, versions in recorded.read().items():
        for version in versions.keys() & before.get(section, {}).keys():
            if versions[version] == before[section][version]:
                say(f"unchanged: {section} {version}")


def _record(program: Program) -> None:
    found = program.count(meter="calls")
    recorded.record(found, "calls")
    if recorded.has_bytecode(found):
        recorded.record(program.count(meter="own_instructions", alone=True), "instructions")
    say("recorded: " + ", ".join(f"{name} {version}" for name, version in found.versions.items()))


def _pythons() -> list[str]:
    """Return this Python, and those in the environments of `bin/matrix`."""
    others = sorted(CHECKOUT.glob(".matrix/python*/bin/python"))
    if not others:
        say("NOT RECORDED: other versions of Python: bin/matrix --environment 3.12 makes an environment")
    own = f"python{sys.version_info.major}.{sys.version_info.minor}-"
    return [sys.executable, *(str(path) for path in others if not path.parts[-3].startswith(own))]


@contextmanager
def _server_programs(programs: Path | None) -> Iterator[None]:
    """Start servers of another version, or of the embedded one, inside."""
    before = os.environ.pop(BIN_VARIABLE, None)
    if programs is not None:
        os.environ[BIN_VARIABLE] = str(programs)
    try:
        yield
    finally:
        os.environ.pop(BIN_VARIABLE, None)
        if before is not None:
            os.environ[BIN_VARIABLE] = before
