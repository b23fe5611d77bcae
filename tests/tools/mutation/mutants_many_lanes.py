"""Mutants of many lanes: which lanes a fetcher reads page by page, which it keeps, and when it may sleep.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

FROM_CURSORS = of_tests(
    ("tests/worker/test_lanes.py", "tests/worker/test_fetcher.py"),
    Mutant(
        "a scan from cursors finds nothing in the lanes that it knows",
        "AND (run_after, id) > (known.after_at, known.after_id)",
        "AND false",
        "LANES",
    ),
    Mutant(
        "a scan from cursors finds no lane of the same queue before one that it knows",
        "AND queue_name = lane.end_name AND priority > lane.end_priority",
        "AND queue_name = lane.end_name AND priority > lane.end_priority + 1",
        "LANES",
    ),
    Mutant(
        "a job behind a cursor is found by no scan",
        "        if from_start and not self._is_whole:\n            self._scan(connection)\n        elif",
        "        if",
        inside="Lanes._read",
    ),
    Mutant(
        "the cursors of slow lanes are not used", "if not self._is_slow or", "if True or", inside="Lanes.scan_cursors"
    ),
    Mutant(
        "a claim from the start ignores no cursor",
        "if not (is_fresh and lane.is_plain) or lane in self._behind",
        "if False",
        inside="Lanes.ordered",
    ),
    Mutant(
        "a claim from the start ignores each cursor",
        "if not (is_fresh and lane.is_plain) or lane in self._behind",
        "",
        inside="Lanes.ordered",
    ),
)

MANY_LANES = of_tests(
    ("tests/worker/test_many_lanes.py",),
    Mutant(
        "news keep pages from being read",
        "(NEWS_SECONDS if has_news else 0.0)",
        "(1e9 if has_news else 0.0)",
        inside="Lanes._read",
    ),
    Mutant(
        "a newest job hides a sooner one",
        "        if due_at < known:\n",
        "        if True:\n",
        inside="LaterLanes.note_sooner",
    ),
    Mutant("a page has no limit", "limit=PAGE_LANES)", "limit=None)", inside="LanePages.read"),
    Mutant("every page is the first", "after=after, limit", "after=None, limit", inside="LanePages.read"),
    Mutant(
        "a circle is complete at the end of the index",
        "self._is_past_end or self._stop is None",
        "True",
        inside="LaneCircle.after_page",
    ),
    Mutant("a page ends a circle early", "not last.is_before(self._stop)", "True", inside="LaneCircle.after_page"),
    Mutant(
        "a circle never ends behind its last lane",
        "self._is_past_end or self._stop is None",
        "self._stop is None",
        inside="LaneCircle.after_page",
    ),
    Mutant(
        "a new job begins no circle",
        "        self._circle.renew(self._clock())\n",
        "",
        inside="LaneWalk.expect_jobs",
    ),
    Mutant(
        "the newest jobs are not read",
        "                self._due.add(lane, turn)\n                has_due",
        "                has_due",
        inside="LanePages._note_newest",
    ),
    Mutant(
        "no circle without a notification",
        "is_old or self._has_claimed",
        "self._has_claimed",
        inside="LaneWalk._begins_circle",
    ),
    Mutant(
        "a circle after each one",
        "self._has_claimed = self._has_failed = False",
        "self._has_failed = False",
        inside="LaneWalk._begins_circle",
    ),
    Mutant(
        "jobs behind a cursor are forgotten",
        "                    self._others.add(lane, turn)\n",
        "                    pass\n",
        inside="LanePages.exhaust",
    ),
    Mutant(
        "no circle while jobs are locked",
        "min(later_at, self._again_at) if self._has_failed else later_at",
        "later_at",
        inside="LaneWalk._next_circle_at",
    ),
    Mutant(
        "no circle for a job that is locked in the last page",
        "        if self._circle.is_complete:  #",
        "        if self._circle.is_complete and self._has_failed:  #",
        inside="LaneWalk._end_page",
    ),
    Mutant(
        "lanes of a paused queue are kept",
        "(self._due, self._others) if began else ()",
        "()",
        inside="LaneWalk._set_paused",
    ),
    Mutant(
        "a resumed queue is not read",
        "self._names |= ended",
        "pass",
        inside="LanePages._note_pauses",
    ),
    Mutant(
        "the end of a pause is believed",
        "if lane.queue_name in self._paused_queues:  #",
        "if False:  #",
        inside="LanePages.pick",
    ),
    Mutant(
        "an unfinished circle counts as empty",
        "(self._circle.is_complete and not has_found)",
        "not has_found",
        inside="LaneWalk.is_complete",
    ),
    Mutant(
        "a sleep does not wait for the circle",
        "        if not self._circle.is_complete or self._names:\n",
        "        if self._names:\n",
        inside="LanePages.next_due_at",
    ),
    Mutant(
        "other lanes are due at any time",
        "later_at = self._later.others_due_at - SOON_SECONDS / 2",
        'later_at = float("inf")',
        inside="LaneWalk._next_circle_at",
    ),
    Mutant("a claim gets all lanes", "most = min(most, LANES_PER_CLAIM)", "most = 10**6", inside="LanePages.pick"),
    Mutant(
        "a full queue hides others", "if not is_full(next(iter(lanes)).queue_name):", "if True:", inside="DueLanes.pick"
    ),
    Mutant(
        "a lane keeps its turn",
        "            self.discard(lane)\n            if not is_crowded",
        "            if not is_crowded",
        inside="DueLanes.had_turn",
    ),
    Mutant(
        "lanes are crowded for ever",
        "            if not is_crowded:\n",
        "            if True:\n",
        inside="DueLanes.had_turn",
    ),
    Mutant(
        "the first lanes of a page take all places", "random.randrange(len(due_in) or 1)", "0", inside="LanePages._keep"
    ),
    Mutant(
        "low priorities come first", "return -lane.priority, self", "return lane.priority, self", inside="DueLanes._key"
    ),
    Mutant(
        "a later lane is never forgotten",
        "self._now, self._before = _Round[T](), self._now",
        "pass",
        inside="LaterLanes.end_round",
    ),
    Mutant(
        "what a lane was due at counts",
        "        self.discard(lane)\n        found",
        "        found",
        inside="LaterLanes.note",
    ),
)
