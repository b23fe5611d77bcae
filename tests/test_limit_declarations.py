"""`Limit`: which declarations are valid, what the engine reads from one, and which limits tasks can share."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from django.utils.functional import lazystr

from django_pgqueue import Breaker, InvalidTask, Limit, task
from django_pgqueue.backend import compat
from django_pgqueue.declared import limits
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests.app import tasks
from tests.framework import tasks as framework_tasks

ADD = tasks.add.func


def untyped(first: Any, *rest: Any, **more: Any) -> None: ...
def shared_a(a: int) -> None: ...
def shared_b(b: int) -> None: ...


for function in (untyped, shared_a, shared_b):
    function.__module__ = tasks.__name__  # where workers find tasks


@pytest.fixture
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    monkeypatch.setattr(registry, "_limits", None)


# ------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("rate", "interval"),
    [("100/m", 0.6), ("5/s", 0.2), ("1000/h", 3.6), ("10/30s", 3.0), ("1/d", 86400.0), ("3/2h", 2400.0)],
)
def test_interval_is_the_period_divided_by_the_starts(rate, interval):
    assert Limit("r", rate=rate).interval_seconds == pytest.approx(interval)


def test_limit_without_rate_has_no_interval():
    assert Limit("c", concurrency=1).interval_seconds is None


@pytest.mark.parametrize(
    ("options", "order", "blocks"),
    [({"key": "{a}"}, None, False), ({"ordered": True}, 1, False), ({"ordered": True, "on_dead": "block"}, 2, True)],
)
def test_order_is_the_value_of_the_column(options, order, blocks):
    limit = Limit("o", **options)
    assert (limit.order, limit.blocks) == (order, blocks)


def test_limit_is_immutable_and_hashable():
    limit = Limit("a", concurrency=2)
    with pytest.raises(FrozenInstanceError):
        limit.concurrency = 3
    assert {limit, Limit("a", concurrency=2)} == {limit}


def test_policy_leaves_out_key_and_weight():
    one = Limit("a", key="{a}", rate="9/s", burst=5, weight=2, concurrency=4, share=3)
    other = Limit("a", key=lambda a: a, rate="9/s", burst=5, concurrency=4, share=3)
    assert one.policy == other.policy
    for changed in ({"rate": "8/s"}, {"burst": 6}, {"concurrency": 5}, {"share": 1}):
        given: dict[str, Any] = {"rate": "9/s", "burst": 5, "concurrency": 4, "share": 3, **changed}
        assert Limit("a", **given).policy != one.policy
    assert Limit("a", ordered=True).policy != Limit("a", ordered=True, on_dead="block").policy


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit("a", concurrency=2), "a (concurrency 2)"),
        (
            Limit("a", key="{x}", rate="5/s", burst=2, weight=len),
            "a (key {x}, rate 5/s, burst 2, weight len)",
        ),
        (Limit("a", ordered=True), "a (ordered)"),
        (Limit("a", breaker=Breaker()), "a (breaker 0.5 of 20 attempts in 60 s, pause 30 s)"),
        (
            Limit("a", share=4, key="{x}", ordered=True, on_dead="block"),
            "a (key {x}, share 4, ordered, blocked by dead jobs)",
        ),
    ],
)
def test_text_of_a_limit_names_what_differs_from_the_defaults(limit, text):
    assert str(limit) == text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"failures": 0}, "breaker: failures 0 must be a share: more than 0 and at most 1"),
        ({"failures": 1.1}, "failures 1.1 must be"),
        ({"failures": float("nan")}, "failures nan must be"),
        ({"failures": True}, "failures True must be"),
        ({"attempts": 0}, "attempts 0 must be a whole number from 1 to 1000000"),
        ({"attempts": 1.0}, "attempts 1.0 must be"),
        ({"attempts": 10**7}, "attempts 10000000 must be"),
        ({"seconds": 0.5}, "seconds 0.5 must be a number of seconds from 1 to 600"),
        ({"seconds": 601}, "seconds 601 must be"),
        ({"pause": 0}, "pause 0 must be a number of seconds from 1 to 86400"),
        ({"pause": float("inf")}, "pause inf must be"),
        ({"exceptions": OSError}, "exceptions <class 'OSError'> must be a tuple of exception classes"),
        ({"exceptions": (OSError, "x")}, "must be a tuple"),
        ({"exceptions": (int,)}, "must be a tuple"),
    ],
)
def test_invalid_breaker_is_refused(options, words):
    with pytest.raises(InvalidTask, match=re.escape(words)):
        Breaker(**options)


def test_tasks_that_share_a_limit_have_equal_breakers():
    assert Limit("a", breaker=Breaker()).policy == Limit("a", breaker=Breaker()).policy
    assert Limit("a", breaker=Breaker()).policy != Limit("a", breaker=Breaker(pause=31)).policy


@pytest.mark.parametrize(("limit_key", "name"), [("a", "a"), ("a:b", "a"), ("a.b-c_d:e:f", "a.b-c_d")])
def test_name_of_returns_the_part_before_the_first_colon(limit_key, name):
    assert limits.name_of(limit_key) == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "the name must be 1 to 60 of the characters"),
        ({"name": "a:b"}, "limit 'a:b': the name must be 1 to 60"),
        ({"name": "a" * 61}, "the name must be 1 to 60"),
        ({"name": "é"}, "the name must be"),
        ({"name": 7}, "limit 7: the name must be"),
        ({"concurrency": 0}, "concurrency 0 must be a whole number from 1 to 1000000000"),
        ({"concurrency": True}, "concurrency True must be"),
        ({"concurrency": 1.0}, "concurrency 1.0 must be"),
        ({"concurrency": 10**10}, "concurrency 10000000000 must be"),
        ({"rate": "9/s", "burst": 0}, "burst 0 must be"),
        ({"share": None}, "share None must be"),
        ({"weight": 0}, "weight 0 must be"),
        ({"weight": "2"}, "weight '2' must be"),
        ({"ordered": 1}, "ordered must be True or False, not 1"),
        ({"ordered": True, "on_dead": "stop"}, "on_dead must be one of continue, block, not 'stop'"),
        ({"rate": 100}, 'rate 100 must be like "100/m"'),
        ({"rate": "100"}, "rate '100' must be like"),
        ({"rate": "100/min"}, "must be like"),
        ({"rate": "0/s"}, "must be like"),
        ({"rate": "1/0s"}, "must be like"),
        ({"rate": " 1/s"}, "must be like"),
        ({"rate": "1/s\n"}, "must be like"),
        ({"rate": "2000000/s"}, "rate '2000000/s' must be at most 1000000 in a second"),
        ({"rate": "1/900d", "burst": 100}, "rate '1/900d' needs more than 100 years for 100 starts"),
        ({"concurrency": None, "key": None}, "limits nothing: pass concurrency, rate, ordered, key or breaker"),
        ({"burst": 2}, "burst needs a rate"),
        ({"concurrency": None, "key": "{a}", "weight": 2}, "weight needs concurrency or rate"),
        ({"on_dead": "block"}, 'on_dead="block" needs ordered=True'),
        ({"ordered": True, "concurrency": 2}, "runs one job of a key at a time: remove concurrency 2"),
        ({"weight": 2}, "weight 2 is more than concurrency 1: raise concurrency"),
        ({"concurrency": 9, "rate": "9/s", "weight": 2}, "weight 2 is more than burst 1: raise burst"),
        ({"breaker": 0.5}, "breaker must be a Breaker or None, not 0.5"),
        ({"key": 7}, "key must be a template or a function of the arguments, not 7"),
        ({"key": "{a"}, "key '{a' is not a template: .*Write {{ and }}"),
        ({"key": "{a.b}"}, "not {a.b}: use a function"),
        ({"key": "{a[0]}"}, r"not {a\[0\]}: use a function"),
        ({"key": "{}"}, "not {}: use a function"),
        ({"key": "{0}"}, r"not \{0\}: use a function"),
        ({"key": "{a:{b}}"}, "is not a template: a field within"),
        ({"key": "{a!x}"}, "converts 'a' by !x, which does not exist: use !s, !r, !a or none"),
        ({"key": "{a!s:d}"}, "formats the text {a!s} as 'd': "),
        ({"key": lazystr("{a}")}, r"key is a lazy string, such as one of gettext_lazy\(\): pass a str"),
        ({"rate": lazystr("9/s")}, "rate is a lazy string"),
        ({"name": lazystr("l")}, "name is a lazy string"),
        ({"key": "all"}, "key 'all' names no argument"),
        ({"key": ""}, "names no argument"),
    ],
)
def test_invalid_limit_is_refused_with_its_value(options, words):
    with pytest.raises(InvalidTask, match=words):
        Limit(**{"name": "l", "concurrency": 1, **options})


def test_limit_of_only_a_key_is_valid():
    assert Limit("tenants", key="{tenant_id}").argument_names == ("tenant_id",)
    assert Limit("days", key="{{{day:%Y-%m}}}!").argument_names == ("day",)


# ------------------------------------------------------------------ tasks


@pytest.mark.parametrize(
    ("func", "options", "words"),
    [
        (ADD, {"limit": "5/s"}, 'limit must be a Limit, such as Limit\\("name", rate="100/m"\\), not \'5/s\''),
        (ADD, {"limit": Limit("l", key="{aa}")}, "limit 'aa' is not an argument of the function: did you mean 'a'"),
        (ADD, {"limit": Limit("l", key="{customer}")}, "'customer' is not an argument .*: name arguments"),
        (ADD, {"limit": Limit("l", key="{a}"), "sensitive": ["a"]}, "'a' is a sensitive argument, and limit keys are"),
        (untyped, {"limit": Limit("l", key="{rest}")}, "'rest' stands for several arguments"),
        (untyped, {"limit": Limit("l", key="{x}"), "sensitive": ["more"]}, "'x' is a sensitive argument"),
    ],
)
def test_task_with_limit_that_does_not_fit_is_refused(func, options, words):
    with pytest.raises(InvalidTask, match=words):
        Task(func=func, name="shop.limited", **options)


def test_context_is_no_argument_of_a_key():
    def run(context: Any, a: int) -> None: ...

    run.__qualname__ = run.__name__
    with pytest.raises(InvalidTask, match="'context' is not an argument"):
        Task(func=run, takes_context=True, limit=Limit("l", key="{context}"))


# ------------------------------------------------------------------ the registry


@pytest.mark.usefixtures("_own_registry")
def test_registry_without_limits_returns_the_same_empty_mapping():
    found = registry.limits()
    assert not found
    assert registry.limits() is found


@pytest.mark.usefixtures("_own_registry")
def test_registry_returns_limits_of_new_tasks():
    before = registry.limits()
    limit = Limit("one", concurrency=1)
    task(limit=limit)(shared_a)
    assert before == {}
    assert registry.limits() == {"one": limit}
    assert registry.limits() is registry.limits()


@pytest.mark.usefixtures("_own_registry")
def test_tasks_with_equal_policies_share_a_limit():
    task(limit=Limit("one", key="{a}", concurrency=4))(shared_a)
    task(limit=Limit("one", key="{b}", weight=2, concurrency=4))(shared_b)
    assert list(registry.limits()) == ["one"]


@pytest.mark.usefixtures("_own_registry")
def test_tasks_with_different_limits_of_one_name_are_refused():
    task(limit=Limit("one", concurrency=4))(shared_a)
    with pytest.raises(InvalidTask) as raised:
        task(limit=Limit("one", concurrency=5))(shared_b)
    words = str(raised.value)
    assert f"{tasks.__name__}.shared_b and {tasks.__name__}.shared_a have different limits 'one'" in words
    assert "one (concurrency 5) and one (concurrency 4)" in words
    assert registry.get(f"{tasks.__name__}.shared_b") is None


@pytest.mark.usefixtures("_own_registry")
def test_task_loaded_again_replaces_its_own_limit():
    task(limit=Limit("one", concurrency=4))(shared_a)
    task(limit=Limit("one", concurrency=5))(shared_a)
    assert registry.limits()["one"].concurrency == 5


# ------------------------------------------------------------------ using()


DECLARED = Limit("declared", key="{a}", concurrency=4)
INVALID = {tasks.add: InvalidTask, framework_tasks.add: compat.InvalidTask}


@pytest.fixture
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_limits", {"declared": DECLARED})


@pytest.mark.usefixtures("_declared")
@pytest.mark.parametrize("made", [tasks.add, framework_tasks.add], ids=["own", "framework"])
@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (Limit("other", concurrency=1), "no registered task declares limit 'other', so no worker would know it"),
        (Limit("declared", concurrency=5), "differs from the one that a task declares, declared .concurrency 5. and"),
        ("declared", "limit must be a Limit"),
    ],
)
def test_using_limit_that_workers_do_not_know_is_refused(made, limit, words):
    with pytest.raises(INVALID[made], match=words):
        made.using(limit=limit)


@pytest.mark.usefixtures("_declared")
@pytest.mark.parametrize("made", [tasks.add, framework_tasks.add], ids=["own", "framework"])
def test_using_limit_with_another_key_and_weight_is_accepted(made):
    other = Limit("declared", key=str, weight=3, concurrency=4)
    assert made.using(limit=other).limit is other
    assert made.using(limit=other).using(priority=2).limit is other
    assert made.using(limit=other).using(limit=None).limit is None
