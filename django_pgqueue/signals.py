"""What happened, for logging, metrics and applications; nothing here can change what happened.

Every signal is sent with `send_robust`: a receiver that raises is logged by Django and changes no outcome.
The sender is the task's name; `job_id` is always given.

| signal | when | process |
|---|---|---|
| job_enqueued | after the insert, inside the caller's still open transaction | the caller's |
| job_started | before the task's function is called | the worker's child, in the job's thread |
| job_succeeded | after the finish was written (an atomic task's: committed) | the worker's child |
| job_failed | a failed attempt was written, another will follow | the worker's child |
| job_dead | the job ended dead | the worker's child, or the supervisor for a crash it saw |
| job_cancelled | the job ended cancelled | where that was written: by an act, in its transaction, or a worker |
| job_rescued | a lost worker's execution was closed (failed, dead or cancelled follows) | the rescuing worker |
"""

from django.dispatch import Signal

job_enqueued = Signal()
"""Arguments: job_id, queue_name."""
job_started = Signal()
"""Arguments: job_id, execution_id, queue_name, attempt."""
job_succeeded = Signal()
"""Arguments: job_id, execution_id, queue_name, attempt, duration_seconds."""
job_failed = Signal()
"""Arguments: job_id, execution_id, queue_name, attempt, exception, error, retry_seconds, and duration_seconds if it ran
to its end. For a lost worker, exception and retry_seconds are None."""
job_dead = Signal()
"""Arguments: as job_failed, but for retry_seconds."""
job_cancelled = Signal()
"""Arguments: job_id, error (the reason, or empty); of an attempt that ran also those of job_dead, but for exception."""
job_rescued = Signal()
"""Arguments: job_id, execution_id, attempt."""
