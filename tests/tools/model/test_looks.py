"""In every order of the steps of their sessions, the protocols lose nothing and do nothing twice; broken ones do."""

import pytest

from tests.tools.model import looks, step_looks
from tests.tools.model.sessions import Protocol, Turn, explore

BROKEN = looks.BROKEN | step_looks.BROKEN
CASES = [(protocol, broken, error) for protocol, cases in BROKEN.items() for broken, error in cases.items()]


def names(case):
    return case.__name__ if callable(case) else str(case)


@pytest.mark.promise("workflow-advance-once")
@pytest.mark.promise("batch-callbacks-once")
@pytest.mark.promise("event-is-never-lost")
@pytest.mark.promise("compensation-once")
@pytest.mark.parametrize("kills", [0, 1, 3])
@pytest.mark.parametrize("protocol", BROKEN, ids=names)
def test_protocol_in_every_order_loses_nothing(protocol, kills):
    found = explore(protocol(""), kills=kills)
    assert found.errors == {}
    assert found.worlds > 50


@pytest.mark.parametrize(("protocol", "broken", "error"), CASES, ids=names)
def test_broken_protocol_is_found(protocol, broken, error):
    assert error in explore(protocol(broken), kills=0).errors


@pytest.mark.parametrize("protocol", [looks.two_ends, looks.batch_ends, step_looks.event_and_suspension], ids=names)
def test_crash_needs_the_sweep(protocol):
    """Without a sweep, a session that is killed between its commit and its look loses what only it could see."""
    killed = protocol("")
    killed.sweep = []
    assert any(error.endswith("after the sweep") for error in explore(killed, kills=1).errors)
    assert explore(killed, kills=0).errors == {}


# ------------------------------------------------------------------ the sessions


def lost_nothing(rows, log):
    return ""


def test_trace_names_the_turns_of_a_shortest_order():
    found = explore(step_looks.event_and_suspension(step_looks.NO_COMPLETER), kills=0)
    trace = found.errors["the job sleeps although its event has come, without a crash"]
    assert (
        trace.index("1 find_event")
        < trace.index("0 commit")
        < trace.index("0 look_of_sender")
        < trace.index("1 write_end")
    )


def test_sessions_that_wait_for_each_other_are_a_deadlock():
    def locks(*rows):
        return [lambda turn, row=row: turn.lock(row) for row in rows]

    programs = [locks("a", "b"), locks("b", "a")]
    found = explore(Protocol({}, programs, [], lost_nothing, lost_nothing), kills=0)
    assert list(found.errors) == ["deadlock"]


def test_snapshot_does_not_see_what_is_committed_later():
    def look(turn: Turn) -> None:
        turn.snapshot()

    def write(turn: Turn) -> None:
        turn.write("a", 1)

    def copy(turn: Turn) -> None:
        turn.write("copy", (turn.seen()["a"], turn.now("a")))

    def wrong(rows, log):
        return str(rows["copy"])

    found = explore(Protocol({"a": 0}, [[look, copy], [write]], [], wrong, lost_nothing), kills=0)
    assert {error for error in found.errors if "sweep" not in error} == {"(0, 0)", "(0, 1)", "(1, 1)"}


def test_killed_session_leaves_no_uncommitted_row_and_no_lock():
    def write(turn: Turn) -> None:
        turn.write("a", turn.now("a") + 1)

    def wrong(rows, log):
        return str(rows["a"])

    found = explore(Protocol({"a": 0}, [[write], [write]], [], wrong, lost_nothing), kills=1)
    assert {error for error in found.errors if "sweep" not in error} == {"2", "1"}
