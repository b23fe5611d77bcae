"""Test how a fetcher obeys changes of limits: overrides, pauses of keys, and the end of holds."""

from __future__ import annotations

import time
from types import MappingProxyType

import pytest

from django_pgqueue import control
from django_pgqueue.control.limits import end_hold, override_limit, restore_limit
from django_pgqueue.db.notifications import PAUSES_CHANGED
from django_pgqueue.declared.limits import Limit
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming.limited import limited_lanes
from tests import helpers
from tests.concurrency.limits import LANE, add, claim
from tests.worker.test_fetcher import make_fetcher, take

__all__ = ["make_fetcher"]

LIMITS = {limit.name: limit for limit in (Limit("two", concurrency=2), Limit("rate", rate="1/h"))}


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))


def settle(fetcher):
    """Tick until the lane rests. Return how many jobs were claimed."""
    count = 0
    while rest_seconds(fetcher) <= 0:
        count += starts(fetcher)
    return count


def rest_seconds(fetcher):
    limited = fetcher.lanes.limited
    waits = [wait.until for wait in limited._waits._waits.values()]
    return 0.0 if limited.has_keys(LANE) or not waits else min(waits) - time.monotonic()


def starts(fetcher):
    """Return how many jobs the fetcher claims now."""
    fetcher.tick()
    return len(take(fetcher))


def starts_after_notification(fetcher, monkeypatch):
    """Return how many jobs the fetcher claims after the notification that `control` sends."""
    with monkeypatch.context() as patch:
        patch.setattr(fetcher.polls.waker, "wait_for_notifications", lambda seconds: {PAUSES_CHANGED})
        fetcher._sleep(0.0)
    return starts(fetcher)


@pytest.mark.promise("limit-raised")
def test_idle_fetcher_obeys_raised_and_restored_limit(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(limited_lanes, "BUSY_SECONDS", 3600.0)  # so that the rest does not end during the test
    add(engine, "two", 9)
    claim(engine, LIMITS["two"])
    fetcher = make_fetcher()
    fetcher.may_sleep(3600.0)
    settle(fetcher)
    assert rest_seconds(fetcher) > 3000
    override_limit("two", concurrency=5)
    assert starts_after_notification(fetcher, monkeypatch) == 3
    restore_limit("two")
    assert starts_after_notification(fetcher, monkeypatch) == 0


@pytest.mark.promise("limit-raised")
def test_idle_fetcher_obeys_raised_rate_without_waiting_for_the_token(engine, make_fetcher, monkeypatch):
    add(engine, "rate", 3)
    fetcher = make_fetcher()
    fetcher.may_sleep(3600.0)
    assert settle(fetcher) == 1
    assert rest_seconds(fetcher) > 3000
    override_limit("rate", rate="100000/s", burst=10)
    helpers.wait_until(lambda: starts_after_notification(fetcher, monkeypatch) == 2)


@pytest.mark.promise("limit-raised")
def test_idle_fetcher_claims_when_a_hold_was_ended(engine, make_fetcher, monkeypatch):
    add(engine, "two", 2)
    engine.execute(
        "INSERT INTO pgqueue_limit_state (limit_key, full_at, held_until) VALUES ('two', now(), now() + interval '1 h')"
    )
    fetcher = make_fetcher()
    settle(fetcher)
    assert end_hold("two")
    assert starts_after_notification(fetcher, monkeypatch) == 2


def test_fetcher_claims_nothing_of_paused_key_and_sleeps(engine, make_fetcher, monkeypatch):
    add(engine, "two", 2)
    control.pause(limit_key="two")
    fetcher = make_fetcher()
    assert settle(fetcher) == 0
    visits = []
    visit = fetcher.lanes.limited.claim
    monkeypatch.setattr(
        fetcher.lanes.limited, "claim", lambda *args, **options: visits.append(1) or visit(*args, **options)
    )
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        time.sleep(fetcher.tick())
    assert len(visits) <= 2
    control.resume(limit_key="two")
    assert starts_after_notification(fetcher, monkeypatch) == 2


def test_lane_looks_again_after_a_poll_interval_if_the_notification_was_lost(engine, make_fetcher):
    add(engine, "rate", 3)
    fetcher = make_fetcher()
    fetcher.may_sleep(0.2)
    assert settle(fetcher) == 1
    override_limit("rate", rate="100000/s", burst=10)
    helpers.wait_until(lambda: starts(fetcher) == 2)
