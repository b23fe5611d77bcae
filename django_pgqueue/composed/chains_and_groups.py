"""Short forms of workflows: `chain()`, `group()` and `chord()`.

Applications call them. They are immutable, and build a `Workflow` when they are enqueued.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack

from django_pgqueue.enqueue.calls import TaskCall
from django_pgqueue.enqueue.mistaken_calls import listed
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.ground.advice import advised
from django_pgqueue.tasks.definition import TaskDefinition

from .workflows import Node, Policy, Workflow

if TYPE_CHECKING:
    from .batches import Batch

R = TypeVar("R")
S = TypeVar("S")
Q = ParamSpec("Q")
R_contra = TypeVar("R_contra", contravariant=True)
S_co = TypeVar("S_co", covariant=True)


class WorkflowOptions(TypedDict, total=False):
    """The options of `Workflow`, which `enqueue()` of the short forms takes too."""

    description: str
    on_success: TaskCall[Any] | None
    on_complete: TaskCall[Any] | None
    on_failure: TaskCall[Any] | None
    parent: Batch | None
    database: str | None
    if_dependency_fails: Policy


class Follower(Protocol[R_contra, Q, S_co]):
    """The type of a task that takes a result as its first argument.

    `Task[Concatenate[R, Q], S]` would not do: pyright then refuses a task that takes more than the result can be, such
    as `int | None` for an `int`. `s()` also returns the call of a coroutine function with the type of its result.
    """

    def s(self, result: R_contra, /, *args: Q.args, **kwargs: Q.kwargs) -> TaskCall[S_co]: ...


class Chain(Generic[R]):
    """Calls that run one after another. Each gets the result of the one before as its first argument.

    The type parameter is the type of the last result.
    """

    __slots__ = ("_before", "_call")

    def __init__(self, call: TaskCall[R], before: Chain[Any] | Group[Any] | None = None) -> None:
        self._call = call
        self._before = before

    def then(self, task: Follower[R, Q, S], *args: Q.args, **kwargs: Q.kwargs) -> Chain[S]:
        """Return this chain with a further call: `task(result, *args, **kwargs)`."""
        return Chain(_call_of("then()", task, args, kwargs), self)

    def fan_out(self, tasks: Iterable[Follower[R, Q, S]], *args: Q.args, **kwargs: Q.kwargs) -> Group[S]:
        """Return a group in which each task gets the result of this chain: `task(result, *args, **kwargs)`."""
        return Group([_call_of("fan_out()", task, args, kwargs) for task in listed("fan_out()", tasks, "tasks")], self)

    def enqueue(self, **options: Unpack[WorkflowOptions]) -> Workflow:
        """Store the jobs in the caller's transaction, and return their workflow, whose last node is the last call.

        Args:
            **options: The options of `Workflow`.

        Raises:
            Exception: The errors of `Workflow.add()` and `Workflow.enqueue()`.
        """
        return _enqueued(self, options)

    async def aenqueue(self, **options: Unpack[WorkflowOptions]) -> Workflow:
        """Do as `enqueue()` from asynchronous code, in a thread. It commits on its own."""
        return await _built(self, options).aenqueue()

    def add_to(self, workflow: Workflow) -> Node[R]:
        """Add the jobs to a workflow, and return the node of the last one."""
        calls: list[TaskCall[Any]] = []
        part: Chain[Any] | Group[Any] | None = self
        while isinstance(part, Chain):
            calls.append(part._call)
            part = part._before
        results = () if part is None else ([node.result for node in part.add_to(workflow)],)
        for call in reversed(calls):
            node: Node[Any] = workflow.add(TaskCall(call.task, (*results, *call.args), call.kwargs))
            results = (node.result,)
        return node


Part = TaskCall[R] | Chain[R]
"""A call or a chain, as a member of a group."""


class Group(Generic[R]):
    """Calls and chains that run independently of one another. The type parameter is the type of their results."""

    __slots__ = ("_before", "_parts")

    def __init__(self, parts: Iterable[Part[R]], before: Chain[Any] | None = None) -> None:
        if isinstance(parts, Group):
            raise TypeError("a group is continued by its then(task), not by chord(group, task)")
        self._parts = listed("a group", parts, "calls")
        self._before = before
        for part in self._parts:
            if not isinstance(part, TaskCall | Chain):
                raise TypeError(
                    f"a group takes calls made by task.s(…) and chains, not {type(part).__name__}{_hint(part)}"
                )
        if not self._parts and before is not None:
            raise InvalidTask("fan_out() got no task: the next call would not wait for the chain")

    def then(self, task: Follower[list[R], Q, S], *args: Q.args, **kwargs: Q.kwargs) -> Chain[S]:
        """Return a chain with a call that gets the list of all results: `task(results, *args, **kwargs)`.

        The call after an empty group gets an empty list, and is ready at once.
        """
        return Chain(_call_of("then()", task, args, kwargs), self)

    def enqueue(self, **options: Unpack[WorkflowOptions]) -> Workflow:
        """Store the jobs in the caller's transaction, and return their workflow. See `Chain.enqueue()`."""
        return _enqueued(self, options)

    async def aenqueue(self, **options: Unpack[WorkflowOptions]) -> Workflow:
        """Do as `enqueue()` from asynchronous code, in a thread. It commits on its own."""
        return await _built(self, options).aenqueue()

    def add_to(self, workflow: Workflow) -> list[Node[R]]:
        """Add the jobs to a workflow, and return the node of each member, for a chain that of its last call."""
        results = () if self._before is None else (self._before.add_to(workflow).result,)
        return [
            part.add_to(workflow)
            if isinstance(part, Chain)
            else workflow.add(TaskCall(part.task, (*results, *part.args), part.kwargs))
            for part in self._parts
        ]


def _hint(part: object) -> str:
    """Return what to write instead of a member of a group."""
    if isinstance(part, Group):
        return ": write a Workflow, whose add() takes the calls of nested groups"
    if isinstance(part, Iterable):
        return ": write group(*calls)"
    return ""


def _call_of(form: str, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskCall[Any]:
    """Return a call that gets a result as well. Its arguments are checked when the workflow is built."""
    if not isinstance(task, TaskDefinition):
        several = ". To start several tasks with one result, write fan_out([task, …])"
        raise TypeError(
            f"{form} takes a task and its further arguments, as in then(store, 17), not {type(task).__name__}"
            f"{several if isinstance(task, Group | Chain | list | tuple) else ''}"
        )
    return TaskCall(task, args, kwargs)


def _built(part: Chain[Any] | Group[Any], options: WorkflowOptions) -> Workflow:
    workflow = Workflow(**options)
    part.add_to(workflow)
    return workflow


def _enqueued(part: Chain[Any] | Group[Any], options: WorkflowOptions) -> Workflow:
    return _built(part, options).enqueue()


@advised(lambda args, given: "write chain(a.s()).then(b.s()), or group([a.s(), b.s()]) for jobs beside each other")
def chain(call: TaskCall[R]) -> Chain[R]:
    """Begin a chain. `then()` adds the next call.

    Example::

        chain(fetch.s(url)).then(parse).then(store, import_id).enqueue()
    """
    if not isinstance(call, TaskCall):
        raise TypeError(f"a chain begins with a call made by task.s(…), not {type(call).__name__}")
    return Chain(call)


def group(*parts: Part[R]) -> Group[R]:
    """Return a group of calls and chains that run independently of one another.

    Example::

        group(resize.s(1), resize.s(2)).then(publish, album_id).enqueue()
    """
    return Group(parts)


def chord(parts: Iterable[Part[R]], task: Follower[list[R], Q, S], *args: Q.args, **kwargs: Q.kwargs) -> Chain[S]:
    """Return a group with a call that gets the list of all results: `group(*parts).then(task, *args, **kwargs)`.

    Example::

        chord([resize.s(1), resize.s(2)], publish, album_id).enqueue()
    """
    return Group(parts).then(task, *args, **kwargs)
