"""Mutants of the figures of limits and of their keys, and of what a job with a limit waits for.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

LIMIT_STATS = [
    *of_tests(
        ("tests/stats/test_limits.py",),
        Mutant(
            "a job that does not fit has a slot",
            "state.running_weight + min(job.weight, slots) >",
            "state.running_weight >",
            inside="wait_of",
        ),
        Mutant(
            "a heavy job needs one token",
            "missing = min(weight, policy.burst) - policy.burst",
            "missing = 1 - policy.burst",
            inside="_token_seconds",
        ),
        Mutant("a bucket is always full", "min(max(state.full_seconds or 0.0, 0.0)", "min(0.0", inside="used_seconds"),
        Mutant("a dead job is any job", "LimitWaitReason.BLOCKED_BY_DEAD if is_dead else", "", inside="wait_of"),
        Mutant(
            "a retry is not the next job", "policy.is_ordered and state.head_id is not None", "False", inside="next_of"
        ),
        Mutant("the time that ends first counts", "last = max(times", "last = min(times", inside="wait_of"),
        Mutant("a pause is not seen", "    if pause is not None:\n", "    if False:\n", inside="wait_of"),
        Mutant(
            "a range ends within its keys",
            'f"{name};") if has_value',
            'f"{name}:z") if has_value',
            inside="range_around",
        ),
        Mutant("a page begins with the last key", 'return f"{limit_key}\\x01"', "return limit_key", inside="after"),
        Mutant("a limit ends at its bare name", "|| ';'\n", "|| '~'\n", inside="LIMITS_WITH_JOBS"),
        Mutant("a page ends early", "limit=count + 1)", "limit=count)", inside="key_figures._page"),
        Mutant("a page has no key that only runs", "*(key for [key] in running)", "", inside="key_figures._page"),
        Mutant("a later job comes first", "return is_later, ", "return False, ", inside="JobsOfKey.order"),
        Mutant(
            "a figure has the shortest hold", "ORDER BY held_until DESC", "ORDER BY held_until", inside="STATES_OF_KEYS"
        ),
        Mutant(
            "ended holds count", "for key, is_held in rows if is_held", "for key, is_held in rows", inside="_read_held"
        ),
        Mutant(
            "a count that was cut is exact",
            "of_limit.jobs_are_cut |= due + later >= limit",
            "pass",
            inside="_read_ready",
        ),
        Mutant("keys that were cut are all", "of_limit.keys_are_cut |= visits", "visits", inside="_read_ready"),
        Mutant(
            "the name's override comes first",
            "for each in (limit_key, name))",
            "for each in (name, limit_key))",
            inside="Controls.policy_of",
        ),
        Mutant(
            "the pause of a key hides its limit's",
            "(limit_key, name_of(limit_key)) if name",
            "(limit_key,) if name",
            inside="Controls.pause_of",
        ),
    ),
    *of_tests(
        ("tests/stats/test_held_jobs.py",),
        Mutant("running jobs leave their slots free", " - state.running_weight, 0)", ", 0)", inside="Room.__init__"),
        Mutant("a rate holds nothing", "int(policy.burst - used + ROUNDING)", "policy.burst", inside="Room.__init__"),
        Mutant("a hold holds nothing", "0 if state.is_held else", "", inside="Room.__init__"),
        Mutant("a heavy job fits never", "min(weight, self._concurrency)", "weight", inside="Room.take"),
        Mutant("jobs take no slot", "self._slots -= fitting * slots", "pass", inside="Room.take"),
        Mutant(
            "jobs behind one that does not fit start",
            "is_exact = is_exact and is_in_order\n                break",
            "is_exact = is_exact and is_in_order",
            inside="admission.admitted",
        ),
        Mutant(
            "each lane has all slots of a key",
            "    room = Room(policy, state)\n    if policy.is_ordered",
            "    if len({lane_order(part) for part in parts}) > 1:\n"
            "        return [each for part in parts for each in admitted(policy, state, [part])]\n"
            "    room = Room(policy, state)\n    if policy.is_ordered",
            inside="admission.admitted",
        ),
        Mutant("the lowest priority comes first", "return -part.priority", "return part.priority", inside="lane_order"),
        Mutant(
            "an ordered job that is due later starts",
            "(state.head_due_seconds or 0.0) <= 0",
            "True",
            inside="admission.admitted",
        ),
        Mutant("an ordered key admits any part", "    if place != (", "    if None != (", inside="_head_in"),
        Mutant(
            "tasks of a key do not take turns",
            "yield from ((number, 1, True)",
            "((number, 1, True)",
            inside="_in_order",
        ),
        Mutant("an unknown order is known", "len(left) == 1)", "True)", inside="_in_order"),
        Mutant(
            "a paused key admits jobs",
            "if policy is None or pause is not None:",
            "if policy is None:",
            inside="ready._of_state",
        ),
        Mutant(
            "an undeclared limit admits jobs",
            "[NONE_ADMITTED] * len(of_one)",
            "_all(of_one, is_exact=True)",
            inside="ready._decided",
        ),
        Mutant(
            "keys that are not read are exact",
            "_all(of_parts[key], is_exact=False)",
            "_all(of_parts[key], is_exact=True)",
            inside="ready._decided",
        ),
        Mutant(
            "keys without due jobs come first",
            "count(*) FILTER (WHERE is_due AND is_first)",
            "count(*) FILTER (WHERE is_first)",
            inside="READY_LIMITED",
        ),
        Mutant(
            "a chunk holds its jobs",
            "elif is_chunk_key(key) and key in chunk_keys",
            "elif False",
            inside="ready._decided",
        ),
        Mutant(
            "paused jobs take slots of their key",
            "part.limit_key is None or is_paused or",
            "part.limit_key is None or",
            inside="read_ready_limited",
        ),
        Mutant(
            "unknown jobs are scheduled",
            "later.count - later.retrying - later.unknown",
            "later.count - later.retrying",
            inside="READY_BY_LANE",
        ),
        Mutant(
            "unknown jobs of tasks are scheduled",
            "attempt = 0 AND unknown_since IS NULL",
            "attempt = 0",
            inside="READY_BY_TASK",
        ),
        Mutant(
            "unknown jobs with a limit are scheduled",
            "attempt = 0 AND unknown_since IS NULL",
            "attempt = 0",
            inside="READY_LIMITED",
        ),
    ),
    *of_tests(
        ("tests/stats/test_limits.py",),
        Mutant("shares are not round", "return share // unit * unit", "return share", inside="share_of"),
        Mutant(
            "keys have a bound of their own",
            "limit = jobs_limit(len(found))",
            "limit = 9",
            inside="key_figures._read_jobs",
        ),
        Mutant(
            "a cut count of a key is exact",
            "each.due + each.later >= limit",
            "each.due + each.later > limit",
            inside="_figures_of_key",
        ),
    ),
    *of_tests(
        ("tests/stats/test_overall.py",),
        Mutant(
            "a count at its limit is exact",
            "cls(found, found < limit)",
            "cls(found, found <= limit)",
            inside="Count.up_to",
        ),
        Mutant(
            "nothing is known as 0",
            'if self.value or self.is_exact else "–"',
            "",
            inside="Count.__str__",
        ),
        Mutant(
            "an estimate depends on the newest jobs alone",
            "factor = ids / read_ids if",
            "factor = 1.0 if",
            inside="DepthReading._add_enqueued",
        ),
        Mutant(
            "an estimate is exact",
            "sum(row[2] for row in rows) >= ENQUEUED_LIMIT",
            "False",
            inside="DepthReading._add_enqueued",
        ),
        Mutant(
            "dead jobs beyond the limit are exact",
            "            self.cut.add(state)\n",
            "            pass\n",
            inside="DepthReading._add_first",
        ),
        Mutant(
            "running jobs beyond the limit are exact",
            "self.cut |= set(states)",
            "pass",
            inside="DepthReading._add_open",
        ),
        Mutant(
            "a cut lane has jobs of its paused tasks alone",
            "elif by_task:",
            "elif False:",
            inside="DepthReading._add_ready",
        ),
        Mutant(
            "the bound of a lane is not round",
            "trunc(share.due, 1 - length(share.due::text))",
            "share.due",
            inside="queries.LANES",
        ),
        Mutant(
            "one job more than the limit is read",
            "LIMIT (SELECT due FROM bound)",
            "LIMIT (SELECT due + 1 FROM bound)",
            inside="DUE",
        ),
    ),
    *of_tests(
        ("tests/metrics/test_unread.py",),
        Mutant(
            "a figure that is not read is 0",
            "NOT_READ if FIGURE_OF_STATE.get(state, state) in unread else count",
            "count",
            inside="DepthReading.of_name",
        ),
        Mutant(
            "a sum that is not read is 0",
            "        state: NOT_READ\n        if FIGURE",
            "        state: NONE\n        if FIGURE",
            inside="overview_of",
        ),
        Mutant(
            "unread workers have slots",
            "workers if has_workers else None",
            "workers",
            inside="overall._slots",
        ),
        Mutant("a rate that is not read is 0", 'None if "enqueued" in unread else', "", inside="DepthReading.of_name"),
    ),
    *of_tests(
        ("tests/admin/test_queues.py",),
        Mutant(
            "an estimate has no sign",
            "if is_estimate else number_text(value)",
            "if False else number_text(value)",
            inside="rate_text",
        ),
        Mutant("a bound has no reason", "return MORE if count.value else NOT_KNOWN", 'return ""', inside="count_note"),
    ),
    *of_tests(
        ("tests/admin/test_tasks.py",),
        Mutant("a task hides what is not known", "if count != stats.Count()", "if count.value", inside="tasks._depths"),
    ),
    *of_tests(
        ("tests/management/test_status.py",),
        Mutant("a dash has no note", 'if has_dash else ""', 'if False else ""', inside="unknown_note"),
    ),
    *of_tests(
        ("tests/management/test_batch_command.py",),
        Mutant(
            "a cut number of a batch is exact",
            '"is_exact": counts.total.is_exact',
            '"is_exact": True',
            inside="batch_command._as_json",
        ),
    ),
    *of_tests(
        ("tests/stats/test_explanation.py",),
        Mutant(
            "held jobs are ahead",
            "ahead += Count(lane.due,",
            "ahead += Count(lane.due + lane.held,",
            inside="_ahead_in_lanes",
        ),
    ),
    *of_tests(
        ("tests/admin/test_queues.py",),
        Mutant("a table has all columns", "state in ALWAYS or ", "True or ", inside="shown_states"),
    ),
    *of_tests(
        ("tests/stats/test_limit_explanation.py",),
        Mutant("a job waits as the first of its key", "row.limit_weight))", "1))", inside="reason_of_limit"),
        Mutant("later jobs are ahead", "AND (run_after, id) < (", "AND (run_after, id) > (", inside="AHEAD_IN_KEY"),
        Mutant("an order counts later jobs", "AND id < %(job_id)s", "AND id <> %(job_id)s", inside="AHEAD_IN_ORDER"),
        Mutant(
            "no name is similar",
            "get_close_matches(name, registry.limits(), n=1)",
            "[]",
            inside="limits.explanation._undeclared",
        ),
    ),
    *of_tests(
        ("tests/stats/test_limited_jobs.py",),
        Mutant(
            "a count repeats each half",
            "for is_null in (True, False)]",
            "for is_null in (True, True)]",
            inside="JobFilters._parts",
        ),
        Mutant(
            "groups are counted in halves",
            " or query.distinct or query.group_by is not None",
            "",
            inside="JobFilters._parts",
        ),
        Mutant(
            "a filter forgets the halves",
            "clone._is_in_two_indexes = self._is_in_two_indexes",
            "pass",
            inside="JobFilters._clone",
        ),
    ),
    *of_tests(
        ("tests/metrics/test_gauges.py",),
        Mutant("any name has a series", "has_label = limit.is_declared and", "has_label =", inside="_limits_by_label"),
        Mutant(
            "waits are added up",
            "limit.oldest_due_seconds or 0.0, max)",
            "limit.oldest_due_seconds or 0.0)",
            inside="READS",
        ),
    ),
    *of_tests(
        ("tests/doctor/test_worker_checks.py",),
        Mutant(
            "any due job is reported",
            "if limit.due.value}",
            "}",
            inside="_undeclared_limits",
        ),
    ),
]
