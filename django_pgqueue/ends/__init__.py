"""Do what follows the end of a job: undo its steps, advance its dependents, and end its batch.

Each of these is an `EndCheck`, and `CHECKS` has them in the order in which they run. Code that ends jobs names none of
them: it notes the ended jobs in `EndChecks`, or `Reactions` calls `follow()`. Each check sees what its caller has
committed. So the last one of several sessions that end jobs of a batch, or the dependencies of a job, sees all ends,
and no end is missed. Sweeps find what a session that was lost has left, and the ends that no code of ours has written.

| what has ended the job | when the checks run |
|---|---|
| an attempt in a worker, in the foreground, in `run_jobs()` or on a remote worker | at once |
| a release, or an attempt to be repeated, of a job that was asked to stop | at once |
| a settlement process, a rescue, an expiry, a requeue, a row that no claim can take | at once |
| a bulk act of an operator | at once, after each of its pages |
| an operator's `cancel()` in an application | dependents: in its transaction; batches and compensations: by a sweep |
| an attempt that ended before it had loaded its steps | compensations: by a sweep; dependents and batches: at once |
| the supervisor itself, after its settlement process has failed | by a sweep |
| SQL of an operator, or the removal of a job | by a sweep |

If another session has locked a row, the worker tries it again for 10 s after a completion. After other ends, and if the
database refuses the write, a sweep does.
"""
