"""`limits()`, `limit_keys()` and `limit_key()` return what runs, what waits, and what the next job waits for."""

from __future__ import annotations

from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_pgqueue import stats
from django_pgqueue.declared.limits import name_of
from django_pgqueue.lifecycle import completions, limit_overrides, limits, pauses
from django_pgqueue.lifecycle.types import Cursor
from django_pgqueue.states import Pausable
from django_pgqueue.stats import Count, LimitWaitReason
from django_pgqueue.stats.limits import bounds
from django_pgqueue.stats.limits import figures as limit_figures
from django_pgqueue.stats.limits import key_ranges as limit_ranges
from django_pgqueue.tasks import registry
from tests import helpers
from tests.documents import plain, table
from tests.stats.limited_jobs import LIMITS, add, claim, die, throttle

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))


def figures(name: str) -> stats.LimitFigures:
    [found] = [each for each in stats.limits() if each.name == name]
    return found


def keys(name: str, **options: Any) -> list[str]:
    return [key.limit_key for key in stats.limit_keys(name, **options).keys]


# ------------------------------------------------------------------ limits


def test_limits_without_jobs_are_the_declared_ones():
    found = stats.limits()
    assert [limit.name for limit in found] == sorted(LIMITS)
    values = stats.LimitValues(concurrency=2, rate=None, burst=1, share=1, is_ordered=False)
    assert figures("two") == stats.LimitFigures(name="two", declaration="two (key {key}, concurrency 2)", values=values)


def test_limits_count_running_due_and_later_jobs_and_keys():
    add("two:a", 3)
    add("two:b", 2, delay=60.0)
    add("two:b", queue_name="mail", priority=5)
    claim("two:a")
    found = figures("two")
    assert (found.running, found.running_weight) == (Count(2), 2)
    assert (found.due, found.later, found.keys) == (Count(2), Count(2), Count(2))
    assert found.held_keys == Count(0)


def test_limits_add_up_weights_of_running_jobs():
    add("heavy", 2, limit_weight=2)
    claim("heavy")
    assert (figures("heavy").running, figures("heavy").running_weight) == (Count(2), 4)


def test_limits_keep_names_apart_that_begin_alike():
    """Between the key `two` and the keys of `two` lie those of `two-x` and `two.y`."""
    for key in ("two", "two-x:1", "two-x", "two.y:1", "two:1", "two:2", "twofold:1"):
        add(key)
    counts = {limit.name: (limit.due.value, limit.keys.value) for limit in stats.limits() if limit.due.value}
    assert counts == {"two": (3, 3), "two-x": (2, 2), "two.y": (1, 1), "twofold": (1, 1)}
    assert figures("two").is_declared and not figures("two-x").is_declared


def test_limits_show_the_longest_wait():
    add("two:a", delay=-60.0)
    add("two:b", delay=-3600.0)
    add("fair:c", delay=60.0)
    assert figures("two").oldest_due_seconds == pytest.approx(3600, abs=10)
    assert figures("fair").oldest_due_seconds is None


def test_limits_count_held_keys():
    for key in ("rate:a", "rate:b"):
        add(key, 2)
        for job, seconds in zip(claim(key), (60.0, -60.0 if key == "rate:b" else 30.0), strict=True):
            throttle(job, seconds)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_limit_state SET held_until = now() - interval '1 s' WHERE limit_key = 'rate:b'")
    assert figures("rate").held_keys == Count(1)


@pytest.mark.parametrize(
    ("module", "constant", "inexact"),
    [
        (bounds, "JOBS_LIMIT", {"due", "later"}),
        (limit_figures, "KEYS_TOTAL", {"keys"}),
        (limit_figures, "RUNNING_LIMIT", {"running"}),
        (limit_figures, "RANGES_TOTAL", {"due", "later", "keys"}),
    ],
)
def test_limits_beyond_a_bound_are_not_exact(monkeypatch, module, constant, inexact):
    for key in ("two:a", "two:b", "two:c"):
        add(key, 5)
        claim(key)
    add("one:a")
    monkeypatch.setattr(module, constant, 2)
    found = figures("two")
    counts = ("running", "due", "later", "keys", "held_keys")
    assert {name for name in counts if not getattr(found, name).is_exact} == inexact


@pytest.mark.parametrize("limit", [4, 5, 10])
def test_limit_and_its_only_key_have_the_same_numbers(monkeypatch, limit):
    """The number is the bound itself, and no more."""
    add("heavy", 3)
    add("heavy", 2, delay=60.0)
    monkeypatch.setattr(bounds, "JOBS_LIMIT", limit)
    found, key = figures("heavy"), stats.limit_key("heavy")
    assert (found.due, found.later) == (key.due, key.later)
    assert key.waiting == Count(min(limit, 5), is_exact=limit > 5)
    [listed] = stats.limit_keys("heavy").keys
    assert (listed.due, listed.later) == (key.due, key.later)


@pytest.mark.parametrize(("parts", "share"), [(1, 100_000), (7, 10_000), (13, 7_000), (0, 100_000), (10**9, 2)])
def test_shares_of_a_bound_are_round(parts, share):
    assert bounds.share_of(100_000, parts) == share


# ------------------------------------------------------------------ keys of a limit


def test_pages_of_keys_contain_each_key_once_in_order():
    expected = [*sorted(f"two:{letter}" for letter in "aBcdZ.-"), "two:é"]
    for number, key in enumerate(expected):
        add(key, queue_name=f"queue{number % 2}", priority=number % 3)
        add(key, queue_name="queue0")
    add("two")
    add("two-x:1")
    claim("two:B", queue_name="queue0")
    found, after = [], ""
    while True:
        page = stats.limit_keys("two", after=after, count=3)
        found += [key.limit_key for key in page.keys]
        assert len(page.keys) <= 3
        if page.next_after is None:
            break
        after = page.next_after
    assert found == ["two", *expected]


def test_page_of_one_lane_says_where_the_next_begins():
    for key in ("two:a", "two:b", "two:c"):
        add(key)
    page = stats.limit_keys("two", count=2)
    assert ([key.limit_key for key in page.keys], page.next_after) == (["two:a", "two:b"], "two:b")
    page = stats.limit_keys("two", count=2, after="two:b")
    assert ([key.limit_key for key in page.keys], page.next_after) == (["two:c"], None)


def test_keys_that_only_run_are_listed():
    [job_id] = add("two:a")
    claim("two:a")
    [key] = stats.limit_keys("two").keys
    assert (key.limit_key, key.running, key.running_job_ids) == ("two:a", Count(1), (job_id,))
    assert (key.waiting, key.waits_for, key.next_job_id) == (Count(0), None, None)


def test_keys_with_prefix_are_found():
    for key in ("two:a", "two:ab", "two:b", "two"):
        add(key)
    assert keys("two", prefix="a") == ["two:a", "two:ab"]
    assert keys("two", prefix="a", after="two:a") == ["two:ab"]
    assert keys("two", prefix="z") == []


@pytest.mark.parametrize("text", ["\x00", "\ud800"])
def test_text_that_no_key_can_have_finds_nothing(text):
    assert keys("two", prefix=text) == keys("two", after=text) == keys(text) == []
    assert stats.limit_key(text).waiting == Count(0)


@pytest.mark.parametrize("count", [0, 201])
def test_page_of_invalid_size_is_refused(count):
    with pytest.raises(ValueError, match=f"count must be from 1 to 200, not {count}"):
        stats.limit_keys("two", count=count)


def test_key_counts_its_jobs_in_all_lanes(monkeypatch):
    add("two:a", 2, delay=-60.0)
    add("two:a", 3, delay=60.0, queue_name="mail")
    add("two:b", 4)
    key = stats.limit_key("two:a")
    assert (key.name, key.due, key.later, key.waiting) == ("two", Count(2), Count(3), Count(5))
    assert key.oldest_due_seconds == pytest.approx(60, abs=10)
    monkeypatch.setattr(bounds, "JOBS_LIMIT", 2)
    assert not stats.limit_key("two:a").waiting.is_exact


# ------------------------------------------------------------------ what the next job waits for


def assert_waits(limit_key: str, reason: LimitWaitReason, seconds: float | None, job_id: int, **fields: Any) -> None:
    """Compare the answer for a key with the expected one, and with what a claim of the job finds."""
    key = stats.limit_key(limit_key)
    assert (key.waits_for, key.next_job_id) == (reason, job_id)
    assert key.next_start_seconds == (None if seconds is None else pytest.approx(seconds, abs=5.0))
    assert {name: getattr(key, name) for name in fields} == fields
    job = limits.limited_job(connection, job_id)
    if job is not None and key.name in LIMITS and reason is not LimitWaitReason.PAUSED:
        policy = limit_overrides.controls_of(connection, [limit_key]).policy_of(limit_key, LIMITS[key.name])
        claimed, [result] = limits.claim_keys(
            connection,
            job.lane,
            [limits.KeyToClaim(limit_key, policy, Cursor())],
            job_id=job_id,
            limit=1,
            free_slots=1,
            worker_id=1,
            lease_seconds=30.0,
        )
        assert bool(claimed) == (reason is LimitWaitReason.WORKER)
        if reason is LimitWaitReason.HOLD or (reason is LimitWaitReason.TOKEN and not result.is_held):
            assert result.due_seconds == pytest.approx(seconds, abs=5.0)


def test_key_whose_limit_admits_a_job_waits_for_a_worker():
    assert_waits("two:a", LimitWaitReason.WORKER, 0.0, add("two:a", 2)[0])


@pytest.mark.promise("stats-limit-waits")
def test_key_without_free_slot_waits_for_a_slot():
    first, second, third = add("two:a", 3)
    claim("two:a")
    assert_waits("two:a", LimitWaitReason.SLOT, None, third, running_job_ids=(first, second))


@pytest.mark.parametrize(("weight", "reason"), [(8, LimitWaitReason.WORKER), (9, LimitWaitReason.SLOT)])
def test_job_heavier_than_the_burst_needs_a_slot_for_its_whole_weight(weight, reason):
    [light] = add("heavy", limit_weight=2)
    claim("heavy")
    [heavy] = add("heavy", limit_weight=weight)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_limit_state SET full_at = full_at - interval '1 h'")
    seconds = 0.0 if reason is LimitWaitReason.WORKER else None
    assert_waits("heavy", reason, seconds, heavy, running_job_ids=(light,))


@pytest.mark.promise("stats-limit-waits")
def test_key_without_token_waits_for_it():
    *_, third = add("rate:a", 3)
    claim("rate:a")
    assert_waits("rate:a", LimitWaitReason.TOKEN, 60.0, third)


def test_key_waits_until_the_tokens_of_a_heavy_job_are_back():
    add("heavy", 3, limit_weight=1)
    claim("heavy")
    [heavy] = add("heavy", limit_weight=4)
    assert_waits("heavy", LimitWaitReason.TOKEN, 20.0, heavy)


@pytest.mark.promise("stats-limit-waits")
def test_held_key_waits_for_the_end_of_the_hold():
    *_, third = add("two:a", 3)
    for job, seconds in zip(claim("two:a"), (600.0, 60.0), strict=True):
        throttle(job, seconds)
    assert_waits("two:a", LimitWaitReason.HOLD, 600.0, third)
    assert stats.limit_key("two:a").held_until is not None


def test_hold_that_ends_before_the_next_token_is_not_the_reason():
    *_, third = add("rate:a", 3)
    first, _ = claim("rate:a")
    throttle(first, 10.0)
    assert_waits("rate:a", LimitWaitReason.TOKEN, 60.0, third)


def test_key_whose_first_job_is_due_later_waits_for_its_time():
    add("two:a", delay=900.0)
    [first] = add("two:a", delay=300.0, queue_name="mail")
    assert_waits("two:a", LimitWaitReason.NOT_DUE, 300.0, first)


def test_next_job_of_key_has_the_highest_priority():
    add("two:a", delay=-60.0)
    [high] = add("two:a", priority=1)
    add("two:a", delay=60.0, priority=2)
    assert_waits("two:a", LimitWaitReason.WORKER, 0.0, high)


def test_due_job_of_low_priority_is_before_a_later_job_of_high_priority():
    [due] = add("two:a", priority=-1)
    add("two:a", delay=60.0, priority=1)
    assert_waits("two:a", LimitWaitReason.WORKER, 0.0, due)


@pytest.mark.promise("stats-limit-waits")
def test_ordered_key_waits_for_the_running_job():
    first, second = add("one:a", 2)
    claim("one:a")
    assert_waits("one:a", LimitWaitReason.ORDER, None, second, blocking_job_id=first)


def test_ordered_key_waits_for_the_retry_of_its_first_job():
    first, _ = add("one:a", 2)
    [job] = claim("one:a")
    completions.fail(connection, helpers.failed(job.key, 500.0))
    assert_waits("one:a", LimitWaitReason.NOT_DUE, 500.0, first, blocking_job_id=None)


def test_ordered_key_with_dead_job_waits_for_an_operator():
    first, second = add("block:a", 2)
    [job] = claim("block:a")
    die(job)
    assert_waits("block:a", LimitWaitReason.BLOCKED_BY_DEAD, None, second, blocking_job_id=first)
    first, second = add("one:a", 2)
    die(claim("one:a")[0])
    assert_waits("one:a", LimitWaitReason.WORKER, 0.0, second, blocking_job_id=None)


def test_key_of_undeclared_limit_says_so():
    assert_waits("other:a", LimitWaitReason.UNDECLARED, None, add("other:a")[0])


def test_guide_lists_every_reason():
    assert [plain(row[0]) for row in table("docs/production/limits.md", "`waits_for`")] == list(LimitWaitReason)


# ------------------------------------------------------------------ overrides and pauses


def override(limit_key: str, **given: Any) -> None:
    options = {name: given.pop(name) for name in ("for_seconds", "changed_by", "reason") if name in given}
    limit_overrides.override(connection, limit_key, given, **options)


def test_limits_show_what_operators_have_changed():
    override("rate", rate="2/h", burst=4, changed_by="anna", reason="a slow partner", for_seconds=600.0)
    override("rate:a", burst=3)
    override("gone", share=2)
    pauses.pause(connection, Pausable.LIMIT, "rate", paused_by="ben", reason="an outage", for_seconds=60.0)
    for key in ("rate:a", "rate:b"):
        pauses.pause(connection, Pausable.LIMIT, key)
    found = figures("rate")
    assert found.values == stats.LimitValues(concurrency=None, rate="2/h", burst=4, share=1, is_ordered=False)
    assert found.override is not None and found.pause is not None
    assert (found.override.rate, found.override.concurrency) == ("2/h", None)
    assert (found.override.by, found.override.reason) == ("anna", "a slow partner")
    assert found.override.until - found.override.changed_at == timedelta(seconds=600)
    assert (found.pause.name, found.pause.by, found.pause.reason) == ("rate", "ben", "an outage")
    assert (found.overridden_keys, found.paused_keys) == (Count(1), Count(2))
    assert figures("gone").values is None and figures("gone").override is not None


def test_override_and_pause_that_have_ended_are_not_shown():
    override("two", concurrency=9, for_seconds=-1.0)
    pauses.pause(connection, Pausable.LIMIT, "two", for_seconds=-1.0)
    found = figures("two")
    assert (found.override, found.pause) == (None, None)
    assert found.values is not None and found.values.concurrency == 2
    key = stats.limit_key("two:a")
    assert (key.override, key.pause) == (None, None)


def test_key_shows_its_own_override_and_the_pause_that_ends_last():
    override("two", concurrency=9, share=5)
    override("two:a", concurrency=3)
    pauses.pause(connection, Pausable.LIMIT, "two:a", for_seconds=60.0)
    pauses.pause(connection, Pausable.LIMIT, "two", for_seconds=600.0)
    add("two:a")
    [key] = stats.limit_keys("two").keys
    assert key.values == stats.LimitValues(concurrency=3, rate=None, burst=1, share=5, is_ordered=False)
    assert key.override is not None and (key.override.limit_key, key.override.concurrency) == ("two:a", 3)
    assert key.pause is not None and key.pause.name == "two"
    pauses.pause(connection, Pausable.LIMIT, "two:a")
    assert stats.limit_key("two:a").pause.name == "two:a"
    assert stats.limit_key("two:b").override is None


@pytest.mark.promise("stats-limit-waits")
@pytest.mark.parametrize("limit_key", ["two", "two:a"])
def test_paused_key_waits_for_the_end_of_the_pause(limit_key):
    [job_id] = add("two:a")
    pauses.pause(connection, Pausable.LIMIT, limit_key)
    assert_waits("two:a", LimitWaitReason.PAUSED, None, job_id)


@pytest.mark.promise("stats-limit-waits")
def test_key_waits_as_its_override_says():
    *_, third = add("two:a", 3)
    claim("two:a")
    override("two:a", concurrency=3)
    assert_waits("two:a", LimitWaitReason.WORKER, 0.0, third)


def test_job_heavier_than_an_override_waits_until_it_runs_alone():
    [first] = add("heavy")
    claim("heavy", 1)
    [heavy] = add("heavy", limit_weight=10)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_limit_state SET full_at = full_at - interval '1 h'")
    override("heavy", concurrency=2)
    assert_waits("heavy", LimitWaitReason.SLOT, None, heavy, running_job_ids=(first,))


# ------------------------------------------------------------------ ranges


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(["a", "a-b", "a.b", "a0"]),
    value=st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=3),
    other=st.sampled_from(["a", "a-b", "a.b", "a0"]),
)
def test_ranges_of_a_limit_contain_its_keys_only(name, value, other):
    limit_key = name if value is None else f"{name}:{value}"
    low, high = limit_ranges.range_around(limit_key)
    ranges = limit_ranges.ranges_of_limit(other, prefix="", after_key="")
    is_inside = any(low.encode() <= limit_key.encode() < high.encode() for low, high in ranges)
    assert is_inside == (name_of(limit_key) == other)
    assert low.encode() <= limit_key.encode() < high.encode()
