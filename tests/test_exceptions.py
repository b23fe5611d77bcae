"""The exceptions that a task raises or receives: their arguments, and their place in the tree."""

from datetime import timedelta

import pytest

from django_pgqueue import Cancel, Dead, LeaseLost, Retry, Snooze, TaskCancelled, TaskTimeout, exceptions


@pytest.mark.parametrize(
    ("retry", "after", "reason"),
    [
        (lambda: Retry(), None, ""),
        (lambda: Retry(60), 60, ""),
        (lambda: Retry(0), 0, ""),
        (lambda: Retry(timedelta(minutes=2)), 120, ""),
        (lambda: Retry(60, "busy"), 60, "busy"),
        (lambda: Retry(60, reason="busy"), 60, "busy"),
        (lambda: Retry(None, "busy"), None, "busy"),
        (lambda: Retry("busy"), None, "busy"),
        (lambda: Retry("busy", after=60), 60, "busy"),
        (lambda: Retry(reason="busy", after=timedelta(minutes=1)), 60, "busy"),
        (lambda: Retry(after=60), 60, ""),
    ],
)
def test_retry_takes_a_delay_or_a_reason_first(retry, after, reason):
    made = retry()
    assert (made.after_seconds, str(made)) == (after, reason)


def test_retry_and_snooze_with_a_number_mean_the_same_delay():
    assert Retry(60).after_seconds == Snooze(60).after_seconds == 60
    assert str(Retry(60, "busy")) == str(Snooze(60, "busy")) == "busy"


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("busy", 60), {}),
        (("busy", "really"), {}),
        ((60, 70), {}),
        ((60,), {"after": 60}),
        ((60,), {"reason": 5}),
        ((True,), {}),
        (([60],), {}),
        ((ValueError("busy"),), {}),
    ],
)
def test_retry_wrong_types_say_what_to_write(arguments, options):
    with pytest.raises(TypeError, match=r"write Retry\(60, 'busy'\)"):
        Retry(*arguments, **options)


@pytest.mark.parametrize(("after", "error"), [("60", TypeError), (-1, ValueError), (float("nan"), ValueError)])
def test_retry_invalid_delay_is_refused(after, error):
    with pytest.raises(error, match="invalid duration"):
        Retry("busy", after=after)


def test_directives_keep_their_reason():
    assert [str(made) for made in (Cancel("a"), Dead("b"), Snooze(1, "c"))] == ["a", "b", "c"]


@pytest.mark.parametrize("stop", [LeaseLost, TaskTimeout, TaskCancelled])
def test_except_exception_lets_stops_of_the_worker_pass(stop):
    def task():
        try:
            raise stop
        except Exception:  # noqa: BLE001 -- the trap that this test is about
            return "swallowed"

    with pytest.raises(stop):
        task()


def test_documented_tree_is_the_tree_of_the_classes():
    """The module's docstring draws the tree: each class is below the class that it is drawn under."""
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in exceptions.__doc__.splitlines():
        head = line.replace("│", " ").replace("├──", "   ").replace("└──", "   ")
        words = head.split()
        if not line.startswith("    ") or not words:
            continue
        name, depth = words[0].partition("(")[0], (len(head) - len(head.lstrip())) // 4 - 1
        drawn[name] = above[depth - 1] if depth else ""
        above[depth:] = [name]
    classes = {name: kind for name, kind in vars(exceptions).items() if isinstance(kind, type)}
    of_errors = {name for name, kind in classes.items() if issubclass(kind, BaseException)}
    assert set(drawn) == of_errors
    for name, parent in drawn.items():
        expected = {parent} if parent else {"Exception", "BaseException"}
        assert expected & {base.__name__ for base in classes[name].__bases__}, name
