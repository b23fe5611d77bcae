"""In which order several processes run the test files: used by `tests/conftest.py` for runs with xdist.

Each process takes the next file when it has finished one. The slowest files come first: if one of them started last,
the other processes would idle until it ended. Files whose tests mostly wait alternate with files that keep a core busy.
Otherwise all processes would wait at the same time, and later all of them would compete for the cores.
"""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import Final

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
