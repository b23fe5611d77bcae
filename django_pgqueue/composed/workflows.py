"""The public class `Workflow`: a graph of jobs, in which a job starts when those that it depends on have ended.

Applications call it, and `chains_and_groups` builds the shorter forms on it. A workflow is a batch with edges: its
progress, its callbacks and its removal are those of batches. `lifecycle.graphs` decides from the rows of the jobs when
a job starts. The module loads before Django's apps are ready, so it imports models only inside functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, get_args

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction

from django_pgqueue.enqueue.calls import TaskCall
from django_pgqueue.enqueue.mistaken_calls import called_in_coroutine, listed
from django_pgqueue.enqueue.new_job import alias_of, check_fit
from django_pgqueue.enqueue.nodes import EncodedNodes, NodeCall
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.ground.batch_reference import check_parent
from django_pgqueue.ground.placeholders import ResultPlaceholder, has_placeholders, placeholders_in
from django_pgqueue.ground.plurals import counted
from django_pgqueue.lifecycle import batches
from django_pgqueue.states import FailurePolicy

from .batches import Batch, BatchProgress

if TYPE_CHECKING:
    from django_pgqueue.models import Job, JobQuerySet

R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

Policy = Literal["cancel", "ignore", "block"]
"""The fate of a job if one that it depends on is dead or cancelled. See `FailurePolicy`."""


class Node(Generic[R_co]):
    """One job of a workflow. Created by `Workflow.add()`. The type parameter is the type of the task's result."""

    __slots__ = ("place", "task_name", "workflow")

    def __init__(self, workflow: Workflow, place: int, task_name: str) -> None:
        self.workflow = workflow
        self.place = place
        self.task_name = task_name

    def __repr__(self) -> str:
        return f"<Node {self.place} of a workflow: {self.task_name}>"

    @property
    def result(self) -> R_co:
        """The result of the job, to be passed to a later node: an argument, or an item of a list, a tuple or a dict.

        It is a placeholder until the later node runs. Its static type is that of the result.
        """
        return cast("R_co", ResultPlaceholder(self, is_optional=False))

    @property
    def result_or_none(self) -> R_co | None:
        """As `result`, but None if the job is dead or cancelled. For nodes with `if_dependency_fails="ignore"`."""
        return cast("R_co | None", ResultPlaceholder(self, is_optional=True))

    @property
    def job_id(self) -> int | None:
        """The id of the job, or None before the workflow is enqueued."""
        job_ids = self.workflow.job_ids
        return job_ids[self.place] if job_ids else None

    @property
    def job(self) -> Job:
        """The job. Each access runs a query."""
        return self.workflow.jobs.get(pk=self.workflow.job_ids[self.place])


class Workflow:
    """A graph of jobs. A job starts when all jobs that it depends on have ended.

    `add()` adds a job for each node, and `enqueue()` stores all of them in the caller's transaction. A node depends on
    the nodes whose results it gets, and on those in `after`.

    If a dependency is dead or cancelled, the policy of the dependent decides:

    - `"cancel"`: it is cancelled, and so are its own dependents. An operator's retry of the dead job restores them.
    - `"ignore"`: it runs all the same.
    - `"block"`: it waits until an operator has retried the dead job and that has succeeded.

    Args:
        description: Text for operators.
        on_success: A call to enqueue when all jobs have succeeded, as for `Batch`.
        on_complete: A call to enqueue when no job is unfinished.
        on_failure: A call to enqueue when the first job is dead or cancelled.
        parent: A batch in which the workflow is nested.
        database: Alias of the database. By default that of the first node's task.
        if_dependency_fails: The policy of nodes that have none of their own.

    Attributes:
        nodes: The nodes in the order in which they were added.
        job_ids: The ids of their jobs, in the same order. Empty before `enqueue()`.

    Example::

        workflow = Workflow(description="Import 17", on_success=send_report.s(17))
        rows = workflow.add(fetch.s(url))
        left = workflow.add(load.s(rows.result))
        workflow.add(clean_up.s(url), after=[left], if_dependency_fails="ignore")
        workflow.enqueue()
    """

    def __init__(
        self,
        *,
        description: str = "",
        on_success: TaskCall[Any] | None = None,
        on_complete: TaskCall[Any] | None = None,
        on_failure: TaskCall[Any] | None = None,
        parent: Batch | None = None,
        database: str | None = None,
        if_dependency_fails: Policy = "cancel",
    ) -> None:
        check_parent(parent)
        _check_policy(if_dependency_fails)
        self._batch_options: dict[str, Any] = {
            "description": description,
            "on_success": on_success,
            "on_complete": on_complete,
            "on_failure": on_failure,
            "parent": parent,
        }
        self._database = database or (parent.database if parent else None)
        self._policy: Policy = if_dependency_fails
        self._calls: list[NodeCall] = []
        self._batch: Batch | None = None
        self.nodes: list[Node[Any]] = []
        self.job_ids: list[int] = []

    def __repr__(self) -> str:
        return f"<Workflow of {counted(len(self.nodes))}, {self._batch!r}>"

    # ------------------------------------------------------------------ build

    def add(
        self, call: TaskCall[S], *, after: Iterable[Node[Any]] = (), if_dependency_fails: Policy | None = None
    ) -> Node[S]:
        """Add a job, and return its node. Nothing is written.

        Args:
            call: A call made by `task.s(…)`. Its arguments can contain `node.result` of nodes of this workflow.
            after: Further nodes that must end before the job starts.
            if_dependency_fails: The policy if one of its dependencies is dead or cancelled. By default that of the
                workflow.

        Raises:
            TypeError: The call was not made by `task.s(…)`, or its arguments do not fit.
            InvalidTask: The task has a unique key or a batch or another database, a node belongs to another workflow,
                the workflow is enqueued already, or a result is not available.
            ValueError: The policy is unknown.
        """
        self._check_call(call)
        policy = self._policy if if_dependency_fails is None else _check_policy(if_dependency_fails)
        policies: dict[int, str] = {}
        for node in listed("after", after, "nodes"):
            policies[self._place_of(node)] = policy
        for placeholder in placeholders_in([call.args, call.kwargs]):
            policies[self._place_of(placeholder.node)] = policy
            self._check_result(call, placeholder, policy)
        node = Node[S](self, len(self.nodes), call.task.name)
        self._calls.append(NodeCall(call, policies))
        self.nodes.append(node)
        return node

    def _check_call(self, call: TaskCall[Any]) -> None:
        if not isinstance(call, TaskCall):
            raise TypeError(f"Workflow.add() takes a call made by task.s(…), not {type(call).__name__}")
        if self._batch is not None:
            raise InvalidTask("the workflow is enqueued already, and takes no more nodes: make a new Workflow")
        task = call.task
        if task.unique_key is not None:
            raise InvalidTask(
                f"{task.name} has a unique key, and another job with it would keep the node away: "
                "write using(unique_key=None).s(…)"
            )
        if task.batch is not None:
            raise InvalidTask(
                f"{task.name} has a batch, and the jobs of a workflow have a batch of their own: "
                "write using(batch=None).s(…), or pass the batch as Workflow(parent=…)"
            )
        check_fit(task, call.args, call.kwargs)
        if any(isinstance(value, Node) for value in (*call.args, *call.kwargs.values())):
            raise TypeError(f"{task.name} gets a node as an argument: pass node.result, or name the node in after=[…]")
        if callable(task.database) and has_placeholders([call.args, call.kwargs]):
            raise InvalidTask(
                f"the database of {task.name} depends on its arguments, and results are not known yet: "
                "write using(database=…).s(…)"
            )
        alias = alias_of(task, call.args, call.kwargs)
        self._database = self._database or alias
        if alias != self._database:
            raise InvalidTask(
                f"a job of {task.name} belongs to database {alias!r}, and the workflow to {self._database!r}: "
                "all jobs of a workflow are in one database"
            )

    def _place_of(self, node: Node[Any]) -> int:
        if not isinstance(node, Node):
            raise TypeError(f"after takes nodes that Workflow.add() has returned, not {type(node).__name__}")
        if node.workflow is not self:
            raise InvalidTask(
                f"{node!r} belongs to another workflow: a node can depend on nodes of its own workflow only"
            )
        return node.place

    def _check_result(self, call: TaskCall[Any], placeholder: ResultPlaceholder, policy: str) -> None:
        needed = placeholder.node
        if policy == FailurePolicy.IGNORE and not placeholder.is_optional:
            raise InvalidTask(
                f'{call.task.name} gets the result of {needed.task_name}, but has if_dependency_fails="ignore", so '
                "that result may not exist: pass node.result_or_none"
            )
        if not self._calls[needed.place].call.task.store_result:
            raise InvalidTask(
                f"{call.task.name} gets the result of {needed.task_name}, which has store_result=False: "
                "write using(store_result=True), or name the node in after=[…]"
            )

    # ------------------------------------------------------------------ enqueue

    def enqueue(self) -> Workflow:
        """Store the workflow in the caller's open transaction, all jobs or none, and return it.

        It takes one statement for 1,000 jobs, and one for 10,000 dependencies. Jobs without dependencies are ready, the
        others are `waiting`. `run_after` and `expires` of a job count from now.

        Raises:
            InvalidTask: The workflow has no node, is enqueued already, or another error of `Batch.open()`.
            Exception: The errors of `Task.enqueue()`.
        """
        if self._batch is not None:
            raise InvalidTask("the workflow is enqueued already: make a new Workflow")
        if not self._calls:
            raise InvalidTask("the workflow has no jobs: add at least one call")
        connection = connections[str(self._database)]
        batch = Batch(**self._batch_options, database=self._database)
        try:
            # Without a nested block: an error in one would make the caller's transaction roll back.
            with nullcontext() if connection.in_atomic_block else transaction.atomic(using=self._database):
                nodes = EncodedNodes(connection, self._calls, lambda node: int(node.place))
                batch_id = int(batch.open().id or 0)
                batches.close_batch(connection, batch_id)  # nobody sees it before its jobs are there
                self._batch, self.job_ids = batch, nodes.job_ids
                nodes.write(batch_id)
        except SynchronousOnlyOperation as error:
            raise called_in_coroutine("a workflow", "workflow.aenqueue()") from error
        except BaseException:
            self._batch, self.job_ids = None, []
            raise
        return self

    async def aenqueue(self) -> Workflow:
        """Do as `enqueue()` from asynchronous code, in a thread. It commits on its own."""
        return await sync_to_async(self.enqueue)()

    # ------------------------------------------------------------------ read and cancel

    @property
    def batch(self) -> Batch:
        """The batch of the jobs: its id, progress and callbacks. Raises `InvalidTask` before `enqueue()`."""
        if self._batch is None:
            raise InvalidTask("the workflow is not enqueued yet: call its enqueue() first")
        return self._batch

    @property
    def id(self) -> int:
        """The id of the batch. `Batch.get(id)` finds it again."""
        return int(self.batch.id or 0)

    @property
    def jobs(self) -> JobQuerySet:
        """The jobs, as a queryset."""
        return self.batch.jobs

    def progress(self) -> BatchProgress:
        """Return how many jobs there are, by state, with one query."""
        return self.batch.progress()

    def cancel(self) -> int:
        """Cancel all unfinished jobs, and return their number. See `Batch.cancel()`."""
        return self.batch.cancel()

    async def acancel(self) -> int:
        """Do as `cancel()` from asynchronous code."""
        return await self.batch.acancel()


def _check_policy(policy: Policy) -> Policy:
    if policy not in (known := get_args(Policy)):
        raise ValueError(f"if_dependency_fails is {policy!r}, but must be one of {', '.join(map(repr, known))}")
    return policy
