"""Writes the lists of the page of fault results: `bin/faults --markdown docs/internals/fault_results.md`.

Between two comments, the page has one list for each group of faults, with a line for each fault. A run of all faults
replaces them. After a change of the catalogue's texts or of `GROUPS`,
`python -m tests.tools.faults.results_page --write` writes the lists again and keeps the results. Without `--write`, the
program only reports whether the page is up to date. It ends with status 1 if it is not.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.tools.faults.catalogue import Fault, load
from tests.tools.faults.report import Row, counts

TOP: Final = Path(__file__).resolve().parents[3]
PAGE: Final = TOP / "docs" / "internals" / "fault_results.md"
BEGIN: Final = "<!-- begin: written by bin/faults --markdown -->\n"
END: Final = "<!-- end: written by bin/faults --markdown -->\n"
PASSED: Final = "passed"
NOT_RUN: Final = "**not run**"
LINE: Final = re.compile(r"- \*\*(F\d+[a-z]?)\*\* (.*?)(?: \((passed .*|\*\*(?:not run|skipped|FAILED)\*\*.*)\))?")
GROUPS: Final = {
    "Lost and frozen hosts and processes": "F01 F01b F02 F02b F03 F09 F09b F10 F95 F110",
    "Stops and signals": "F04 F05 F06 F07 F07b F07c F08 F109",
    "Memory, processes and processor time": "F12 F12b F13 F14 F16 F104",
    "Clocks": "F17 F18 F45 F45b",
    "Restarts, lost sessions and read-only servers": "F19 F20 F20b F21 F22 F23 F27 F112 F115",
    "Replication and failover": "F23b F24 F24b F25 F25b F25c F26 F27b F27c",
    "Network": "F28 F28b F28c F29 F29b F29c F29d F30 F33 F34 F108",
    "Disk, connections and settings of the server": "F35 F36 F37 F38 F39 F43 F92",
    "Locks, load and maintenance of the tables": "F41 F42 F42b F44 F46 F47 F49 F78 F106",
    "PgBouncer": "F50 F50b F50c F50d F50e F50f F50g F50h F51 F51b F51c",
    "Notifications and polls": "F52 F53 F107",
    "Schedules": "F59 F59b F60 F61",
    "Tasks that crash, hang or misbehave": ("F62 F62b F63 F64 F65 F65b F66 F67 F69 F70 F72 F74 F75 F77 F79 F81"),
    "Rows that the database refuses or that are damaged": "F82 F82b F99 F100 F101",
    "Unique keys, cancelling, pauses and expiry": "F83 F84 F85 F86 F105 F114",
    "Receivers, services and logs": "F90 F91 F94",
    "Operators": "F113 F126",
    "Limits": "F116 F117 F118 F119 F120 F121 F122 F123 F124 F125",
    "Chunks, circuit breakers and changes of limits": "F127 F128 F129 F130",
    "Several hosts": "F131 F132 F133 F133b F134 F135",
    "Workflows, batches and durable steps": (
        "F136 F137 F138 F138b F138c F139 F139b F140 F140b F141 F142 F143 F144 F145 F146"
    ),
}
"""The faults of each group by the heading that the group has on the page. A new fault needs a place here."""


def part(rows: Sequence[Row], *, date: str, seed: int, jobs: int, seconds: float, versions: Mapping[str, str]) -> str:
    """Return the generated part of the page: when and where the run took place, and a list for each group."""
    tally = counts(list(rows))
    system = ".".join(versions["system"].split(".")[:2])
    about = (
        f"On {date}, `bin/faults --jobs {jobs}` with seed {seed} injected {len(rows)} faults in {seconds / 60:.0f} "
        f"minutes. The results were: {tally['ok']} passed, {tally['FAILED']} failed, {tally['skipped']} skipped. The "
        f"versions were {system}, PostgreSQL {versions['postgresql']}, Python {versions['python']}, Django "
        f"{versions['django']} and psycopg {versions['psycopg']}."
    )
    return f"{_wrapped(about)}\n\n{lists({row.fault: result(row) for row in rows})}"


def lists(found: Mapping[Fault, str]) -> str:
    """Return the heading and the list of each group, from the result of each fault."""
    by_id = {fault.id: fault for fault in found}
    texts = []
    for heading, ids in GROUPS.items():
        faults = [by_id[each] for each in ids.split() if each in by_id]
        if faults:
            texts.append(f"## {heading}\n\n{''.join(line(fault, found[fault]) for fault in faults)}")
    return "\n".join(texts)


def result(row: Row) -> str:
    """Return how a fault ended. What it measured is in the output of the run and in its JSON."""
    if row.status == "ok":
        return PASSED
    detail = row.detail.strip().splitlines()
    return f"**{row.status}**: {detail[-1] if detail else row.measured}"


def line(fault: Fault, text: str) -> str:
    """Return the line of a fault. It says nothing of a fault that has passed."""
    note = "" if text == PASSED else f" ({' '.join(text.split())})"
    title = " ".join(fault.title.split())
    return f"{_wrapped(f'- **{fault.id}** {title}{note}', indent='  ')}\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def is_page(path: Path) -> bool:
    """Return whether a file has the two comments. Only a run of all faults may be written into such a file."""
    return path.exists() and BEGIN in path.read_text()


def written(text: str, new: str) -> str:
    """Return the text of a page with a new part between its two comments."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{new}\n{END}{rest.partition(END)[2]}"


def write(path: Path, new: str) -> None:
    """Write a part into a page, or into a file of its own."""
    path.write_text(written(path.read_text(), new) if is_page(path) else new)


def results(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the id, the title and the result of each fault in the generated part of a page."""
    generated = text.partition(BEGIN)[2].partition(END)[0]
    for each in generated.replace("\n  ", " ").splitlines():
        if found := LINE.fullmatch(each):
            yield found[1], found[2], found[3] or PASSED


def refreshed(text: str) -> str:
    """Return the text of a page with the current texts of the catalogue. A fault without a line is not run yet."""
    before = {name: result for name, _, result in results(text)}
    about = text.partition(BEGIN)[2].partition("\n## ")[0].strip()
    return written(text, f"{about}\n\n{lists({fault: before.get(fault.id, NOT_RUN) for fault in load()})}")


def main(options: Sequence[str]) -> int:
    """Write the page if asked to, print whether it was up to date, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.faults.results_page", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    write_it = parser.parse_args(options).write
    before = PAGE.read_text()
    after = refreshed(before)
    if write_it:
        PAGE.write_text(after)
    elif before != after:
        print("the page is not up to date: run python -m tests.tools.faults.results_page --write")  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
