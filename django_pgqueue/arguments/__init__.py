"""Convert the arguments and the result of a task by its annotations, between Python values and plain JSON values.

`plan.call_plan()` compiles the annotations of a function once. `TaskDefinition` calls the plan: when a job is enqueued,
when an attempt begins, and when a result is stored or read. A task whose annotations name only plain JSON types has no
plan, and its calls pass through unchanged.
"""
