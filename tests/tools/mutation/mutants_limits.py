"""Mutants of limits: the locks and counts of claims, what a limit admits, and the turns of keys.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

LOCK = "pg_try_advisory_xact_lock(hashtextextended('pgqueue:' || {}limit_key, 0))"
IN_ONE_STATEMENT = f"""
for _name, _key in (("LOCK_KEYS", "given."),):
    _text = getattr(sql.limits, _name)
    setattr(sql.limits, _name, _text.replace("{LOCK}".format(_key), "true"))
_given = "CROSS JOIN clock_timestamp() AS clock (at)\\n"
_text = sql.limits.CLAIM_KEYS
assert _given in _text
sql.limits.CLAIM_KEYS = _text.replace(_given, _given + "    WHERE {LOCK}\\n".format("each."))
"""
"""Lock the keys in the statement that counts their executions."""

ADMISSION = of_tests(
    ("tests/concurrency/test_limits.py",),
    Mutant("the time of a claim is that of its statement", "clock_timestamp()", "statement_timestamp()", "CLAIM_KEYS"),
    Mutant("freed keys are not locked", LOCK.format("given."), "true", "LOCK_KEYS"),
    Mutant(
        "keys are locked and counted in one statement",
        "COLUMNS_OF_JOB: Final = 17\n",
        f"COLUMNS_OF_JOB: Final = 17\n{IN_ONE_STATEMENT}",
        inside="COLUMNS_OF_JOB",
    ),
    Mutant(
        "locks of keys end before the count",
        "        with transaction_of(connection):",
        "        if True:",
        inside="KeyClaims.claim",
    ),
    Mutant(
        "open executions count without weight",
        "sum(least(coalesce(limit_weight, 1), given.concurrency))",
        "count(*)",
        "CLAIM_KEYS",
    ),
    Mutant(
        "a job takes one slot",
        "least(coalesce(job.limit_weight, 1), key.concurrency, 1000000000)",
        "1::bigint",
        "CLAIM_KEYS",
    ),
    Mutant(
        "a job takes one token",
        "least(coalesce(job.limit_weight, 1), key.burst, 1000000000)",
        "1::bigint",
        "CLAIM_KEYS",
    ),
    Mutant(
        "a job of an ordered key takes one token",
        "least(coalesce(job.limit_weight, 1), key.burst, 1000000000)",
        "least(coalesce(job.limit_weight, 1), key.concurrency, key.burst)",
        "CLAIM_KEYS",
    ),
    Mutant(
        "a job heavier than its concurrency waits for ever",
        "least(coalesce(job.limit_weight, 1), key.concurrency, 1000000000)",
        "coalesce(job.limit_weight, 1)",
        "CLAIM_KEYS",
    ),
    Mutant(
        "a job heavier than its burst waits for ever",
        "least(coalesce(job.limit_weight, 1), key.burst, 1000000000)",
        "coalesce(job.limit_weight, 1)",
        "CLAIM_KEYS",
    ),
    Mutant("a frozen process keeps keys locked", "%(idle_wait)s::text", "'0'", "LOCK_KEYS"),
    Mutant("ended executions count", "state = 'running' AND limit_key = given", "limit_key = given", "CLAIM_KEYS"),
    Mutant("no burst", "nullif(each.burst, 0) AS burst", "nullif(least(each.burst, 1), 0) AS burst", "CLAIM_KEYS"),
    Mutant(
        "starts spend no tokens",
        "    WHERE interval_us IS NOT NULL AND (is_taken OR used_us >= burst * interval_us)\n",
        "    WHERE false\n",
        "CLAIM_KEYS",
    ),
    Mutant(
        "replaced states stay",
        "    WHERE id = ANY (ARRAY (\n        SELECT state_id",
        "    WHERE false AND id = ANY (ARRAY (\n        SELECT state_id",
        "CLAIM_KEYS",
    ),
    Mutant(
        "a clock that went back stops a key",
        "               given.burst * given.interval_us\n",
        "               1000000000000\n",
        "CLAIM_KEYS",
    ),
    Mutant(
        "a bucket that is full too late does not fill",
        "    WHERE interval_us IS NOT NULL AND (is_taken OR used_us >= burst * interval_us)\n",
        "    WHERE interval_us IS NOT NULL AND is_taken\n",
        "CLAIM_KEYS",
    ),
    Mutant("held keys start jobs", "CASE WHEN held_us > 0 THEN 0 ELSE", "CASE WHEN false THEN 0 ELSE", "CLAIM_KEYS"),
    Mutant(
        "an ordered key does not wait for its running job",
        "state IN ('ready', 'running') OR",
        "state = 'ready' OR",
        "CLAIM_KEYS",
    ),
    Mutant(
        "jobs without an order never run",
        "CASE WHEN key.head_id IS NULL AND",
        "CASE WHEN NOT key.is_ordered AND",
        "CLAIM_KEYS",
    ),
    Mutant("a dead job never blocks", " OR state = 'dead' AND limit_order = 2", "", "CLAIM_KEYS"),
    Mutant("each dead job blocks", "state = 'dead' AND limit_order = 2", "state = 'dead'", "CLAIM_KEYS"),
    Mutant(
        "rated jobs are prefetched",
        "(interval_us IS NOT NULL OR is_last)",
        "(is_last)",
        "CLAIM_KEYS",
    ),
    Mutant(
        "a count believes an id of emptied tables",
        "each.open_after <= pg_sequence_last_value('pgqueue_execution_id_seq')",
        "true",
        "CLAIM_KEYS",
    ),
    Mutant("a count begins behind open executions", "coalesce(first_id, execution_id,", "coalesce(", "CLAIM_KEYS"),
    Mutant(
        "keys do not take turns", "ORDER BY (number - 1) / share, turn, number", "ORDER BY turn, number", "CLAIM_KEYS"
    ),
    Mutant("each turn has one job", "(number - 1) / share", "number", "CLAIM_KEYS"),
    Mutant(
        "states that have not passed are pruned", "WHERE passes_at <", "WHERE true OR passes_at <", "PRUNE_LIMIT_STATES"
    ),
    Mutant("states of held keys are pruned", "greatest(full_at, held_until)", "full_at", "PRUNE_LIMIT_STATES"),
    Mutant("to prune states waits for a claim", "FOR UPDATE SKIP LOCKED", "FOR UPDATE", "PRUNE_LIMIT_STATES"),
)
VISITS = of_tests(
    ("tests/worker/test_limited_lanes.py",),
    Mutant("the completer notes no keys", "            self.limited.note_ended(keys)\n", "", inside="EndedLimits.note"),
    Mutant(
        "freed keys wait for the circle",
        "if self.add(lane, key, is_news=True):",
        "if False:",
        inside="LimitedLanes.free_ended",
    ),
    Mutant(
        "a circle waits for no token",
        "now + max(result.due_seconds, 0.0)",
        "now + 60.0",
        inside="LimitedLanes._place",
    ),
    Mutant(
        "busy keys are not visited again",
        "now + self.busy_seconds",
        "now + 60.0",
        inside="LimitedLanes._place",
    ),
    Mutant(
        "each visit of a circle waits a second",
        "else tried_at + STEP_SECONDS",
        "else if_overdue",
        inside="KeyPages.next_due_at",
    ),
    Mutant(
        "the order in which a claim has taken jobs of keys does not count",
        "key=lambda key: last.get(key, -1)",
        "key=lambda key: 0",
        inside="LimitedLanes._visit",
    ),
    Mutant(
        "keys that a full claim has left come after the others",
        "self.others.move_to_end(key, last=False)",
        "pass",
        inside="DueKeys.put_back",
    ),
    Mutant(
        "a key of a rate that has just had its turn comes first again",
        "if result.is_left and",
        "if key in visit.left or result.is_left and",
        inside="LimitedLanes._visit",
    ),
    Mutant(
        "keys that wait take half of the time from other jobs",
        "if not (self.limited.is_paced and (picked or has_others)):",
        "if True:",
        inside="KeyPages.pick",
    ),
    Mutant(
        "freed keys of a queue that was just paused are claimed from",
        'if self._scanned_at == float("-inf"):',
        "if False:",
        inside="Lanes.before_scan",
    ),
    Mutant(
        "a key that waits since before the pause of its queue is claimed from",
        "if lane.queue_name in self._paused_queues:",
        "if False:",
        inside="KeyPages._place",
    ),
    Mutant(
        "unknown limits end the claim",
        "if name_of(key) not in registry.limits():",
        "if False:",
        inside="KeyPages._note",
    ),
)
SLOTS = of_tests(
    ("tests/worker/test_slots_for_limits.py",),
    Mutant(
        "keys with news starve the others",
        "        self._is_turn_of_first = not self._is_turn_of_first\n",
        "",
        inside="DueKeys.take",
    ),
    Mutant(
        "a scan never drops a cursor",
        "if found is not None and run_after",
        "if False and run_after",
        inside="KeyCursors.drop_if_behind",
    ),
    Mutant(
        "a key that a claim has left is forgotten",
        "state.put_back(left)",
        "pass",
        inside="LimitedLanes._visit",
    ),
    Mutant(
        "prefetched jobs take every slot", "self._limited.needs_slot(lane)", "False", inside="LimitedKind.needs_slot"
    ),
    Mutant(
        "siblings hold a freed key back",
        "limited.can_continue(free_slots)",
        "limited.have_waiting",
        inside="Lanes.can_continue",
    ),
    Mutant("a cursor stays behind its jobs", "Cursor(job.run_after, job.job_id)", "Cursor()", inside="KeyCursors.keep"),
    Mutant(
        "a cursor never looks back",
        "if self._clock() < looks_back_at",
        "if True",
        inside="KeyCursors.beginning",
    ),
)
PRUNED = of_tests(
    ("tests/worker/test_pruner.py",),
    Mutant(
        "each page of states is the first",
        'end if max(found) >= params["limit"] else None)',
        "None)",
        inside="page_in_ranges",
    ),
)
HOLDS = of_tests(
    ("tests/concurrency/test_holds.py",),
    Mutant("Throttled holds no key", "WHERE held_key IS NOT NULL", "WHERE false", "RELEASE"),
    Mutant("each snooze holds its key", "CASE WHEN given.holds AND given", "CASE WHEN given", "RELEASE"),
    Mutant("the shortest hold of a batch counts", "max(delay_seconds)", "min(delay_seconds)", "RELEASE"),
    Mutant("the shortest hold counts", "ORDER BY held_until DESC", "ORDER BY held_until", "CLAIM_KEYS"),
)
ONE_JOB = of_tests(
    ("tests/concurrency/test_limited_job.py",),
    Mutant(
        "a claim of one job takes the first jobs of its key",
        " AND %(job_id)s::bigint IS NULL\n",
        "\n",
        "CLAIM_KEYS",
    ),
    Mutant("a foreground run ignores the order", "AND id = coalesce(key.head_id, id)", "", "CLAIM_KEYS"),
    Mutant("a claim of one job takes it early", "(%(is_early)s::boolean OR", "(true OR", "CLAIM_KEYS"),
)
IN_FOREGROUND = of_tests(
    ("tests/worker/test_foreground_limits.py",),
    Mutant("a foreground run reads no overrides", ", has_controls=True)", ")", inside="foreground_claim._claim"),
    Mutant(
        "the lock of a key limits the caller's transaction",
        "coalesce(%(idle_wait)s::text, current_setting('idle_in_transaction_session_timeout'))",
        "coalesce(%(idle_wait)s::text, '5s')",
        "LOCK_KEYS",
    ),
)
OVERRIDDEN = of_tests(
    ("tests/concurrency/test_limit_overrides.py",),
    Mutant("claims ignore overrides", "if not self.has_controls:", "if True:", inside="KeyClaims._controls_of"),
    Mutant("each claim reads overrides", "if not self.has_controls:", "if False:", inside="KeyClaims._controls_of"),
    Mutant(
        "the override of the limit counts before the one of the key",
        "self.overrides.get(limit_key), self.overrides.get(limit.name)",
        "self.overrides.get(limit.name), self.overrides.get(limit_key)",
        inside="KeyControls.policy_of",
    ),
    Mutant(
        "an override that has ended counts", "      AND (valid_until IS NULL OR", "      AND (true OR", "KEY_CONTROLS"
    ),
    Mutant("a pause of a key that has ended counts", "AND (paused_until IS NULL OR", "AND (true OR", "KEY_CONTROLS"),
    Mutant("paused keys are claimed", "if controls.pause_of(key) is None:", "if True:", inside="KeyClaims._to_claim"),
    Mutant(
        "pauses of limits stop nothing",
        "for name in (limit_key, name_of(limit_key)))",
        "for name in (limit_key,))",
        inside="KeyControls.pause_of",
    ),
    Mutant(
        "queues with the name of a key pause it", "    WHERE kind = 'limit'\n      AND", "    WHERE", "KEY_CONTROLS"
    ),
    Mutant("an override gives an ordered key slots", "1 if limit.ordered else _first(", "_first(", inside="policy_of"),
    Mutant(
        "a new override loses the fields of the last",
        "'share' = ANY (%(given)s::text[]) OR",
        "true OR",
        "OVERRIDE_LIMIT",
    ),
    Mutant(
        "a count that counted nothing hides executions",
        " and result.limit_key in counted:",
        ":",
        inside="KeyClaims._learn_counts",
    ),
    Mutant("all holds end", "(limit_key = %(limit_key)s OR", "(true OR", "END_HOLDS"),
)
MANY_KEYS = of_tests(
    ("tests/worker/test_many_keys.py",),
    Mutant(
        "the key of a new job waits for the circle",
        "[self._note(each, turn, is_news=True) for each in newest]",
        "[False for each in newest]",
        inside="KeyPages._note_newest",
    ),
    Mutant(
        "a new chunk waits for the circle",
        "return not is_known and",
        "return False and",
        inside="KeyPages._note_key_of_chunk",
    ),
    Mutant("a key that waits is visited in each lane", "if wait is None:", "if True:", inside="Waits.until"),
    Mutant("all due keys are remembered", "if len(keys) < MOST_KEYS:", "if True:", inside="DueKeys.add"),
    Mutant("all keys that wait are remembered", "len(self._waits) <= MOST_KEYS and ", "", inside="Waits.set"),
    Mutant(
        "all keys are visited before a plain job is claimed",
        "if not (self.limited.is_paced and (picked or has_others)):",
        "if True:",
        inside="KeyPages.pick",
    ),
)
CLAIMS_OF_LIMITS = [*ADMISSION, *VISITS, *SLOTS, *MANY_KEYS, *PRUNED, *HOLDS, *ONE_JOB, *IN_FOREGROUND, *OVERRIDDEN]
