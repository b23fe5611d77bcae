"""The job state machine: one function per transition, and the only code that writes state.

The worker, `enqueue()`, the operator's methods, the admin and the testing tools call it. It protects one invariant:
a worker can complete an execution only while that execution is open. The fence is in each statement (see
`django_pgqueue.sql`).

Each function normally runs one statement (`rescue()` and `requeue()` run two) on the connection that it gets, in that
connection's transaction. It returns what happened to each id. A lost race is a return value, not an exception:

* `TransitionStatus.DONE`: this call made the transition.
* `TransitionStatus.ALREADY_DONE`: an earlier call of the same worker made it, and the reply was lost.
* `TransitionStatus.LOST`: another worker closed the execution, or its job is gone. This worker's result is discarded.
* `TransitionStatus.LOCKED`: another session has locked the rows. The execution is still open, so call again.

On engine connections, deadlocks, serialization failures and lock timeouts are retried, but not in a transaction.
"""
