"""`manage.py pgqueue doctor`: examine the database, the workers and the settings, and print what is wrong."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

from django_pgqueue.display import in_line
from django_pgqueue.doctor import Finding, Level, examine

from .output import Output, counted
from .subcommand import ExitCode, Options, Subcommand, add_databases, add_json, database_aliases

INDENT: Final = 9


def _add_arguments(parser: ArgumentParser) -> None:
    add_databases(parser)
    add_json(parser)
    parser.add_argument(
        "--fail-on",
        choices=[Level.WARNING.value, Level.ERROR.value],
        default=Level.ERROR.value,
        help="Least level of a finding for exit code 1. Default: error.",
    )


def _run(options: Options, out: Output) -> None:
    found = {alias: examine(alias) for alias in database_aliases(options)}
    if out.is_json:
        documents = {alias: _document(alias, findings) for alias, findings in found.items()}
        [document] = [{"databases": documents}] if options["all_databases"] else documents.values()
        out.write(json.dumps(document, indent=2, default=str))
    else:
        for alias, findings in found.items():
            heading = f"Database {alias!r}\n" if options["all_databases"] else ""
            out.write(f"{heading}{_as_text(findings)}")
    least = Level(options["fail_on"])
    if any(finding.level.is_at_least(least) for findings in found.values() for finding in findings):
        sys.exit(ExitCode.FAILED)


def _document(alias: str, findings: list[Finding]) -> dict[str, Any]:
    return {
        "database": alias,
        "examined_at": datetime.now(UTC).isoformat(),
        "counts": _counts(findings),
        "findings": [finding.as_dict() for finding in findings],
    }


def _as_text(findings: list[Finding]) -> str:
    lines = [line for finding in findings for line in _lines(finding)]
    counts = ", ".join(f"{number} {level}" for level, number in _counts(findings).items())
    return "\n".join([*lines, f"{counted(len(findings), 'check')}: {counts}"])


def _lines(finding: Finding) -> list[str]:
    lines = [f"{finding.level:<{INDENT}}{finding.id}: {in_line(finding.what)}"]
    if finding.level is Level.OK:
        return lines
    lines.append(f"{'':<{INDENT}}Why: {in_line(finding.why)}")
    return [*lines, f"{'':<{INDENT}}Fix: {in_line(finding.fix)}"] if finding.fix else lines


def _counts(findings: list[Finding]) -> dict[str, int]:
    found = Counter(finding.level for finding in findings)
    return {level.value: found[level] for level in Level}


DOCTOR = Subcommand(
    "doctor", "Examine the database, the workers and the settings, and print what is wrong.", _add_arguments, _run
)
