"""In which order several processes run the test files: used by `tests/conftest.py` for runs with xdist.

Each process takes the next file when it has finished one. The slowest files come first: if one of them started last,
the other processes would idle until it ended. Files whose tests mostly wait alternate with files that keep a core busy.
Otherwise all processes would wait at the same time, and later all of them would compete for the cores.

A process imports a file and collects its tests when it runs the file (`FileOfTests`). Otherwise each process would
collect all tests: 14 s of processor time for each, of which 3 s are the start of pytest.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

WAITING: Final = (
    *("tests/process/test_endurance.py", "tests/process/test_application_code.py"),
    *("tests/process/test_hostile_code.py", "tests/process/test_timeouts.py", "tests/process/test_crashes.py"),
    *("tests/process/test_worker_signals.py", "tests/process/test_output.py", "tests/process/test_idle_fleet.py"),
    *("tests/process/test_restarted_ids.py",),
    *("tests/process/test_starved_completer.py", "tests/example/test_demo.py", "tests/process/test_stopping.py"),
    *("tests/process/test_cancelling.py", "tests/process/test_schedules.py", "tests/test_docs_queries.py"),
    *("tests/privacy/test_workers.py", "tests/process/test_health.py", "tests/process/test_network.py"),
    *("tests/process/test_job_lines.py", "tests/test_enqueue_many.py"),
    *("tests/process/test_clone_guard.py", "tests/process/test_pauses.py", "tests/test_recipes.py"),
    *("tests/process/test_leaks.py", "tests/test_docs_metrics.py", "tests/worker/test_fetcher.py"),
    *("tests/process/test_foreground.py", "tests/doctor/test_examination.py", "tests/admin/test_state_words.py"),
)
"""The slowest files that use less than half of a core, the slowest first."""
BUSY: Final = (
    *("tests/tools/faults/test_quick.py", "tests/admin/test_hostile.py", "tests/deploys/test_migrate_under_load.py"),
    *("tests/deploys/test_schemas.py", "tests/deploys/test_schedules.py", "tests/process/test_running.py"),
    *("tests/process/test_recycling.py", "tests/process/test_isolation.py", "tests/worker/test_interruption.py"),
    *("tests/test_docs_examples.py", "tests/process/test_tutorial.py", "tests/security/test_roles.py"),
    *("tests/test_embedded.py", "tests/test_plans.py", "tests/admin/test_every_url.py", "tests/test_states.py"),
    *("tests/tools/benchmarks/counts/test_counts.py",),
    *("tests/admin/test_schedules.py", "tests/test_sql.py", "tests/concurrency/test_interleavings.py"),
    *("tests/security/test_hostile_rows.py", "tests/admin/test_lists.py", "tests/example/test_shop.py"),
    *("tests/test_stateful.py", "tests/concurrency/test_bad_rows.py", "tests/kit/test_plugin.py"),
    *("tests/example/test_commands.py", "tests/test_serialization.py", "tests/process/test_progress.py"),
    *("tests/concurrency/test_limit_interleavings.py", "tests/concurrency/test_cursor.py"),
    *("tests/test_stateful_workflows.py", "tests/test_stateful_steps.py"),
    *("tests/worker/test_django_connections.py", "tests/admin/test_stale_pages.py"),
    *("tests/concurrency/test_many_unique.py", "tests/concurrency/test_limits.py", "tests/concurrency/test_races.py"),
)
"""The slowest of the other files, the slowest first."""
PLACES: Final = {name: place for place, name in enumerate(filter(None, chain(*zip_longest(WAITING, BUSY))))}


def place_of(node_id: str) -> int:
    """Return the place of a test's file in the order. All files without a place of their own come last."""
    return PLACES.get(node_id.partition("::")[0], len(PLACES))


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
    """Schedules tests file by file, and all tests of deploys in one process: their two releases take 6 s to build."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/deploys" if nodeid.startswith("tests/deploys/") else super()._split_scope(nodeid)

    def _reschedule(self, node: Any) -> None:
        """Give a process a file to run and the next one, or tell it that there is no other.

        A process starts a file only when it knows which one follows. xdist gives one that replaces a crashed process a
        single file, and then both sides would wait.
        """
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


class FileOfTests(pytest.Item):
    """Stands for the tests of a file until the process runs the file, and collects them then.

    pytest and xdist treat it as one test. The tests are reported as usual.
    """

    @classmethod
    def of(cls, path: Path, parent: pytest.Collector) -> FileOfTests:
        """Return the item for a file."""
        module = pytest.Module.from_parent(parent, path=path)
        item: FileOfTests = cls.from_parent(parent, name=path.name, path=path, nodeid=module.nodeid)
        item.add_marker(pytest.mark.timeout(0))  # each of its tests has its own time limit
        return item

    def runtest(self) -> None:
        """Refuse to run as a single test."""
        raise NotImplementedError("run_tests() runs the tests of the file")

    def run_tests(self, nextitem: pytest.Item | None) -> None:
        """Collect and run the tests of the file."""
        session = self.session
        module = pytest.Module.from_parent(self.parent, path=self.path)
        tests = list(session.genitems(module))
        self.config.hook.pytest_collection_modifyitems(session=session, config=self.config, items=tests)
        place = session.items.index(self)
        for test, following in zip(tests, [*tests[1:], nextitem], strict=False):
            session.items[place] = test  # xdist checks that a report is of the item that it has started
            self.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        session.items[place] = self


class StartedTests:
    """Knows the tests of a run: to xdist, which sees only the files, it gives their number and the test of a crash.

    The controlling process registers it as a plugin.
    """

    def __init__(self) -> None:
        self._count = 0
        self._running: set[str] = set()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Show no percentage, because the number of all tests is known only at the end."""
        reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        reporter._show_progress_info = False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a test runs."""
        self._count += 1
        self._running.add(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that a test has ended."""
        self._running.discard(nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Name the test that was running when its process crashed."""
        names = sorted(name for name in self._running if name.startswith(f"{crashitem}::"))
        self._running.difference_update(names)
        report.longrepr = f"{report.longrepr}: {', '.join(names)}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Let pytest fail a run without a test."""
        result = yield
        session.testscollected = self._count
        return result
