"""The command line of the fault suite."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.tools.faults import needs, report, results_page
from tests.tools.faults.catalogue import Fault, load
from tests.tools.faults.report import Row
from tests.tools.faults.run import Run, Skip
from tests.tools.faults.scenarios.hosts import NEEDS as HOSTS_NEEDS
from tests.tools.faults.soak import lines as soak_lines
from tests.tools.faults.soak import soak
from tests.tools.faults.soak_hosts import lines as soak_hosts_lines
from tests.tools.faults.soak_hosts import soak_hosts
from tests.tools.faults.storm import MINUTES as STORM_MINUTES
from tests.tools.faults.storm import lines as storm_lines
from tests.tools.faults.storm import storm
from tests.tools.faults.suite import Suite, suite


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; return 1 if anything failed."""
    options = _parser().parse_args(arguments)
    if options.markdown and results_page.is_page(options.markdown) and not _is_whole(options):
        raise SystemExit(f"--markdown {options.markdown}: only a run of all faults replaces the lists of this page")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that `timeout` leaves nothing behind, like Ctrl-C
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell's background job inherits it ignored, and so would workers
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` starts the suite with it ignored
    faults = _chosen(load(), options)
    if options.list:
        for fault in faults:
            say(f"{fault.id:5} {'quick' if fault.quick else '     '} {fault.title} | {fault.invariant}")
        return 0
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    say(f"seed {seed}")
    began = datetime.now(UTC)
    with suite(seed, options.keep, fresh_start=not options.quick) as shared:
        rows, figures, lines = _run(shared, faults, options)
        with shared.server.connect() as session:
            server = session.execute("SHOW server_version").fetchall()[0][0]
    for line in lines:
        say(line)
    say(report.summary(rows, seed))
    if options.markdown:
        about = {"date": f"{began:%Y-%m-%d}", "seed": seed, "jobs": options.jobs, "versions": report.versions(server)}
        seconds = (datetime.now(UTC) - began).total_seconds()
        results_page.write(options.markdown, results_page.part(rows, seconds=seconds, **about))
    if options.json:
        report.write(options.json, rows, seed=seed, server=server, soak=figures)
    failed = any(row.status == "FAILED" for row in rows) or (figures and (figures["violations"] or figures["stuck"]))
    return 1 if failed else 0


def _is_whole(options: argparse.Namespace) -> bool:
    """Return whether every fault of the catalogue is to be run."""
    return not (options.only or options.quick or options.soak or options.soak_hosts or options.storm)


def _run(
    shared: Suite, faults: list[Fault], options: argparse.Namespace
) -> tuple[list[Row], dict[str, Any] | None, list[str]]:
    """Run scenarios or a soak; return the rows, or the figures of the soak and their lines."""
    if options.soak:
        figures = soak(shared, options.soak, say)
        return [], figures, soak_lines(figures)
    if options.soak_hosts:
        if reason := needs.missing(HOSTS_NEEDS):
            return [], None, [f"skipped: the soak of several hosts: {reason}"]
        figures = soak_hosts(shared, options.soak_hosts, say)
        return [], figures, soak_hosts_lines(figures)
    if options.storm:
        figures = storm(shared, options.storm, say)
        return [], figures, storm_lines(figures)
    return run_all(shared, faults, options.jobs), None, []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("bin/faults", description="Injects faults into real processes.")
    parser.add_argument("--list", action="store_true", help="say which faults there are, and run none")
    parser.add_argument("--only", metavar="F09,F12", help="run these; F62 is F62b too")
    parser.add_argument("--quick", action="store_true", help="run the choice that CI runs; workers are forks")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="scenarios at a time, where they may")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the results there as lists")
    parser.add_argument("--seed", type=int, help="repeat what was random")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="instead: random faults under load, for so long")
    parser.add_argument(
        "--soak-hosts", type=float, metavar="MINUTES", help="instead: random faults of five hosts, for so long"
    )
    parser.add_argument(
        "--storm",
        type=float,
        nargs="?",
        const=STORM_MINUTES,
        metavar="MINUTES",
        help=f"instead: all kinds of faults under load, and a check of every promise; by default {STORM_MINUTES:g}",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep histories and logs there")
    return parser


def _chosen(faults: list[Fault], options: argparse.Namespace) -> list[Fault]:
    if options.only:
        wanted = options.only.split(",")
        faults = [one for one in faults if one.id in wanted or one.id.rstrip("bcdefgh") in wanted]
        if not faults:
            raise SystemExit(f"no fault {options.only}: see --list")
    return [one for one in faults if one.quick or not options.quick]


def run_all(shared: Suite, faults: list[Fault], jobs: int) -> list[Row]:
    """Run scenarios, `jobs` at a time; those that disturb the server one after another, after the others."""

    def run(fault: Fault) -> Row:
        row = run_one(shared, fault)
        say(row.line())
        return row

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        rows = list(pool.map(run, [one for one in faults if not one.exclusive]))
    rows += [run(one) for one in faults if one.exclusive]
    return rows


def run_one(shared: Suite, fault: Fault) -> Row:
    """Run one scenario and the checker after it."""
    began = time.monotonic()
    if reason := needs.missing(fault.needs):
        return Row(fault, "skipped", reason, 0.0)
    status, measured, detail, run = "ok", "", "", None
    try:
        run = Run(shared, fault.id)
        measured = str(fault.scenario(run))
    except Skip as reason:
        status, measured = "skipped", str(reason)
    except Exception:  # noqa: BLE001 -- whatever it is, it is the row's result
        status, measured, detail = "FAILED", "see below", traceback.format_exc()
    except BaseException:
        if run:
            run.abandon()
        raise
    try:
        _, violations = run.close() if run else (None, [])
    except Exception:  # noqa: BLE001 -- as above
        status, violations = "FAILED", []
        detail += traceback.format_exc()
    if violations:
        status = "FAILED"
        detail += "\n".join(map(str, violations))
    return Row(fault, status, measured, time.monotonic() - began, detail)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
