"""Run sessions with snapshots, row locks and commits, as PostgreSQL does at READ COMMITTED.

`looks` and `step_looks` contain the protocols. `protocol.py` knows one job and no snapshots. Here, a protocol is a
handful of rows and a few sessions. Each session is a list of steps, and a step is a function that gets a `Turn`: it can
take a snapshot, lock a row, write a row, and commit. `explore()` runs the sessions in every order of their steps, and
can kill each of them before every step. A statement is several steps: its snapshot is taken before it has its locks, as
in PostgreSQL.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Rows = tuple[tuple[str, Any], ...]
KILLED = -1


class Session(NamedTuple):
    """What a session has done so far. `place` is its next step."""

    place: int = 0
    written: Rows = ()
    """Rows that it has not committed yet."""
    locked: frozenset[str] = frozenset()
    seen: tuple[tuple[str, Rows], ...] = ()
    """Its snapshots, by name."""
    said: tuple[str, ...] = ()
    """What its open transaction adds to the log."""


class World(NamedTuple):
    """The committed rows, the sessions, and what committed transactions have added to the log."""

    rows: Rows
    sessions: tuple[Session, ...]
    log: tuple[str, ...] = ()


class Blocked(Exception):
    """The session waits for a lock of another one."""


class Turn:
    """One step of one session."""

    def __init__(self, world: World, number: int, broken: str) -> None:
        session = world.sessions[number]
        self.broken = broken
        self.log = world.log
        self._committed = dict(world.rows)
        self._written = dict(session.written)
        self._locked = set(session.locked)
        self._others = {row for each, other in enumerate(world.sessions) if each != number for row in other.locked}
        self._seen = dict(session.seen)
        self._said = session.said
        self._place = session.place
        self.next_place = session.place + 1

    def snapshot(self, name: str = "") -> None:
        """Begin a statement: it sees what is committed now."""
        self._seen[name] = tuple(sorted((self._committed | self._written).items()))

    def seen(self, name: str = "") -> Mapping[str, Any]:
        return dict(self._seen[name])

    def now(self, row: str) -> Any:
        """Return the latest version of a row, as a statement reads it after it has locked the row."""
        return (self._committed | self._written).get(row)

    def try_lock(self, row: str) -> bool:
        """Lock a row with SKIP LOCKED."""
        if row not in self._others:
            self._locked.add(row)
        return row not in self._others

    def lock(self, row: str) -> None:
        """Lock a row, and wait for it."""
        if not self.try_lock(row):
            raise Blocked

    def write(self, row: str, value: Any, said: str = "") -> None:
        self.lock(row)
        self._written[row] = value
        self._said += (said,) if said else ()

    def commit(self) -> None:
        self._committed |= self._written
        self.log += self._said
        self._written, self._locked, self._said = {}, set(), ()

    def again(self, steps: int = 0) -> None:
        """Go back by some steps. 0: repeat this one."""
        self.next_place = self._place - steps

    def stop(self) -> None:
        self.commit()
        self.next_place = KILLED

    def after(self, world: World, number: int) -> World:
        """Return the world after this turn."""
        session = Session(
            self.next_place,
            tuple(sorted(self._written.items())),
            frozenset(self._locked),
            tuple(sorted(self._seen.items())),
            self._said,
        )
        sessions = (*world.sessions[:number], session, *world.sessions[number + 1 :])
        return World(tuple(sorted(self._committed.items())), sessions, self.log)


Step = Callable[[Turn], None]
Program = list[Step]


@dataclass
class Protocol:
    """Rows and sessions, and what has to be true in the end.

    Args:
        rows: The rows at the beginning.
        programs: The steps of each session.
        sweep: The steps of the sweep, which runs alone after all sessions have ended or were killed.
        wrong: Returns what is wrong with the rows and the log. "" if nothing is.
        lost: Returns what is lost without a sweep. It is not asked if a session was killed, or if the sweep has run.
    """

    rows: Mapping[str, Any]
    programs: list[Program]
    sweep: Program
    wrong: Callable[[Mapping[str, Any], tuple[str, ...]], str]
    lost: Callable[[Mapping[str, Any], tuple[str, ...]], str]
    broken: str = ""
    """The error in the protocol. The sweep is never broken."""
    needs_sweep: bool = False
    """Whether even without a crash, the sweep is needed in some orders."""


@dataclass
class Found:
    """How many worlds there are, and one order of steps for each error."""

    worlds: int = 0
    errors: dict[str, list[str]] = field(default_factory=dict)


def explore(protocol: Protocol, *, kills: int = 1) -> Found:
    """Run the sessions in every order. Up to `kills` of them are killed, before any of their steps."""
    begin = World(tuple(sorted(protocol.rows.items())), (Session(),) * len(protocol.programs))
    came_by: dict[World, tuple[World, str] | None] = {begin: None}
    killed = {begin: 0}
    queue, found = deque([begin]), Found()
    while queue:
        world = queue.popleft()
        steps = list(moves(protocol, world, may_kill=killed[world] < kills))
        if all(session.place == KILLED for session in world.sessions):
            for error in errors_at_the_end(protocol, world, was_killed=killed[world] > 0):
                found.errors.setdefault(error, trace(came_by, world))
        elif all(number is None for number, _, _ in steps):
            found.errors.setdefault("deadlock", trace(came_by, world))
        for number, text, after in steps:
            kill_count = killed[world] + (number is None)
            if after not in came_by or kill_count < killed[after]:
                came_by[after], killed[after] = (world, text), kill_count
                queue.append(after)
    found.worlds = len(came_by)
    return found


def moves(protocol: Protocol, world: World, *, may_kill: bool) -> Iterator[tuple[int | None, str, World]]:
    """Yield each possible turn: the session (None: it is killed), the text for the trace, and the world after it."""
    for number, session in enumerate(world.sessions):
        if session.place == KILLED:
            continue
        if may_kill:
            gone = (*world.sessions[:number], Session(KILLED), *world.sessions[number + 1 :])
            yield None, f"{number} is killed", world._replace(sessions=gone)
        program, turn = protocol.programs[number], Turn(world, number, protocol.broken)
        if session.place == len(program):
            turn.stop()
            yield number, f"{number} ends", turn.after(world, number)
            continue
        try:
            program[session.place](turn)
        except Blocked:
            continue
        yield number, f"{number} {program[session.place].__name__}", turn.after(world, number)


def errors_at_the_end(protocol: Protocol, world: World, *, was_killed: bool) -> Iterator[str]:
    """Yield what is wrong after all sessions have ended, and after the sweep."""
    if error := protocol.wrong(dict(world.rows), world.log):
        yield error
    if not was_killed and not protocol.needs_sweep and (error := protocol.lost(dict(world.rows), world.log)):
        yield f"{error}, without a crash"
    swept = World(world.rows, (Session(),), world.log)
    while swept.sessions[0].place not in (KILLED, len(protocol.sweep)):
        turn = Turn(swept, 0, "")
        protocol.sweep[swept.sessions[0].place](turn)
        swept = turn.after(swept, 0)
    turn = Turn(swept, 0, "")
    turn.stop()
    swept = turn.after(swept, 0)
    for check in (protocol.wrong, protocol.lost):
        if error := check(dict(swept.rows), swept.log):
            yield f"{error}, after the sweep"


def trace(came_by: Mapping[World, tuple[World, str] | None], world: World) -> list[str]:
    """Return the turns that lead to this world."""
    turns: list[str] = []
    while (step := came_by[world]) is not None:
        world, text = step
        turns.append(text)
    return turns[::-1]
