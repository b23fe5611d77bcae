"""Mutants of many lanes: which lanes a fetcher reads page by page, which it keeps, and when it may sleep.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import LANES, Mutant, of_tests

PAGES = "django_pgqueue/worker/claiming/lane_pages.py"
CIRCLE = "django_pgqueue/worker/claiming/lane_circle.py"
DUE = "django_pgqueue/worker/claiming/due_lanes.py"
LATER = "django_pgqueue/worker/claiming/later_lanes.py"

MANY_LANES = of_tests(
    ("tests/worker/test_many_lanes.py",),
    Mutant(
        "news keep pages from being read",
        "(NEWS_SECONDS if has_news else 0.0)",
        "(1e9 if has_news else 0.0)",
        path=LANES,
    ),
    Mutant("a newest job hides a sooner one", "        if due_at < known:\n", "        if True:\n", path=LATER),
    Mutant("a page has no limit", "limit=PAGE_LANES)", "limit=None)", path=PAGES),
    Mutant("every page is the first", "after=after, limit", "after=None, limit", path=PAGES),
    Mutant(
        "a circle is complete at the end of the index", "self._is_past_end or self._stop is None", "True", path=CIRCLE
    ),
    Mutant("a page ends a circle early", "_place(last) >= _place(self._stop)", "True", path=CIRCLE),
    Mutant(
        "a circle never ends behind its last lane",
        "self._is_past_end or self._stop is None",
        "self._stop is None",
        path=CIRCLE,
    ),
    Mutant("a new job begins no circle", "        self._circle.renew(time.monotonic())\n", "", path=PAGES),
    Mutant(
        "the newest jobs are not read",
        "                self._due.add(lane, turn)\n                has_due",
        "                has_due",
        path=PAGES,
    ),
    Mutant("no circle without a notification", "is_old or self._has_claimed", "self._has_claimed", path=PAGES),
    Mutant(
        "a circle after each one",
        "self._has_claimed = self._has_failed = False",
        "self._has_failed = False",
        path=PAGES,
    ),
    Mutant(
        "jobs behind a cursor are forgotten",
        "                    self._behind.add(lane, turn)\n",
        "                    pass\n",
        path=PAGES,
    ),
    Mutant(
        "no circle while jobs are locked",
        "min(later_at, self._again_at) if self._has_failed else later_at",
        "later_at",
        path=PAGES,
    ),
    Mutant(
        "no circle for a job that is locked in the last page",
        "        if self._circle.is_complete:  #",
        "        if self._circle.is_complete and self._has_failed:  #",
        path=PAGES,
    ),
    Mutant("lanes of a paused queue are kept", "        if began:\n", "        if False:\n", path=PAGES),
    Mutant("a resumed queue is not read", "self._names |= self._paused_queues - paused_queues", "pass", path=PAGES),
    Mutant(
        "the end of a pause is believed", "if lane.queue_name in self._paused_queues:  #", "if False:  #", path=PAGES
    ),
    Mutant(
        "an unfinished circle counts as empty",
        "(self._circle.is_complete and not has_found)",
        "not has_found",
        path=PAGES,
    ),
    Mutant(
        "a sleep does not wait for the circle",
        "        if not self._circle.is_complete or self._names:\n",
        "        if self._names:\n",
        path=PAGES,
    ),
    Mutant(
        "other lanes are due at any time",
        "later_at = self._later.others_due_at - SOON_SECONDS / 2",
        'later_at = float("inf")',
        path=PAGES,
    ),
    Mutant("a claim gets all lanes", "most = min(most, LANES_PER_CLAIM)", "most = 10**6", path=PAGES),
    Mutant("a full queue hides others", "if not is_full(next(iter(lanes)).queue_name):", "if True:", path=DUE),
    Mutant(
        "a lane keeps its turn",
        "            self.discard(lane)\n            if not is_crowded",
        "            if not is_crowded",
        path=DUE,
    ),
    Mutant("lanes are crowded for ever", "            if not is_crowded:\n", "            if True:\n", path=DUE),
    Mutant("the first lanes of a page take all places", "random.randrange(len(due_in) or 1)", "0", path=PAGES),
    Mutant("low priorities come first", "return -lane.priority, self", "return lane.priority, self", path=DUE),
    Mutant("a later lane is never forgotten", "self._now, self._before = _Round(), self._now", "pass", path=LATER),
    Mutant("what a lane was due at counts", "        self.discard(lane)\n        found", "        found", path=LATER),
)
