"""The command `bin/bench --counts`: count what one warm plain job costs, and print or record it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from example_project.embedded.server import BIN_VARIABLE
from tests.tools.benchmarks.counts import recorded, recording, tables
from tests.tools.benchmarks.counts.figures import FORMS, Figures, Found, each, entered, merged
from tests.tools.benchmarks.counts.outside import server_instructions, system_calls
from tests.tools.benchmarks.counts.private_server import CHECKOUT, NotCounted, Program, private_server
from tests.tools.benchmarks.telling import say

BYTECODE_BATCHES: Final = 1
"""Each instruction of all libraries calls a function, so a count of more batches would take minutes."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the options that follow `--counts`."""
    parser = argparse.ArgumentParser(prog="bin/bench --counts", description=__doc__)
    parser.add_argument("forms", nargs="*", metavar="FORM", help=f"of {', '.join(FORMS)}; all")
    parser.add_argument("--record", action="store_true", help="record the counts that CI compares")
    parser.add_argument("--functions", action="store_true", help="print the calls of each function instead")
    parser.add_argument("--server-instructions", action="store_true", help="count the server's instructions: minutes")
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help="count the package in this directory")
    program = "the Python of the counted program (%(default)s)"
    parser.add_argument("--python", type=os.path.abspath, default=sys.executable, help=program)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.epilog = f"{BIN_VARIABLE} chooses another version of PostgreSQL."
    return parser


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, with all forms if none is named."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if unknown := set(options.forms) - set(FORMS):
        parser.error(f"no such form: {', '.join(sorted(unknown))}; there are {', '.join(FORMS)}")
    options.forms = options.forms or list(FORMS)
    return options


def main(arguments: Sequence[str]) -> None:
    """Count, and print a table."""
    options = parsed(arguments)
    if options.record and not options.server_instructions:
        recording.record_all()
        return
    forms = options.forms
    with private_server() as cluster:
        program = Program(cluster, options.python, options.checkout.resolve())
        program.make_tables()
        found = program.count(forms, meter="calls")
        if options.functions:
            print(tables.functions(found, forms))  # noqa: T201 -- what it is for
            return
        figures = merged(each(found, forms, "calls"), entered(found, forms), more(program, found, forms))
    if options.server_instructions:
        instructions = or_not_counted(server_instructions, options.python, options.checkout, forms)
        figures = merged(figures, instructions)
        if options.record and instructions:
            recorded.record_server_instructions(found.versions["postgresql"], instructions)
    about = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    print(f"{about}\n\n{tables.figures(figures)}")  # noqa: T201 -- as above
    if options.json:
        options.json.write_text(json.dumps({"versions": found.versions, "forms": figures}, indent=1) + "\n")
    changed = recorded.changes(found, "calls")
    if changed and options.checkout == CHECKOUT:
        say(recorded.message(changed))


def more(program: Program, found: Found, forms: Sequence[str]) -> dict[str, Figures]:
    """Return what is counted in further processes: locks, bytecode and system calls."""
    locks = program.count(forms, meter="locks", alone=True)
    parts = [{form: {"locks": sum(locks.of_program(form, "locks").values())} for form in forms}]
    if recorded.has_bytecode(found):
        bytecode = program.count(forms, meter="instructions", batches=BYTECODE_BATCHES, alone=True)
        parts.append({form: bytecode.of_program(form, "instructions") for form in forms})
    else:
        say("NOT COUNTED: bytecode instructions, because sys.monitoring needs Python 3.12: pass --python")
    return merged(*parts, or_not_counted(system_calls, program, forms))


def or_not_counted(count: Callable[..., Mapping[str, Figures]], *arguments: object) -> Mapping[str, Figures]:
    """Return what a function counts, or nothing if the program that it needs is missing."""
    try:
        return count(*arguments)
    except NotCounted as error:
        say(f"NOT COUNTED: {error}")
        return {}
