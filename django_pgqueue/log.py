"""Write one log line per transition of a job, on the logger `django_pgqueue.worker`, and print lines about attempts.

`worker.execution.job_events` calls `write()` at each transition. The lines do not depend on the application's signal
receivers. `log_events` lists the fields of the records. No record carries an argument or a result. `enable()` decides
once, when the worker starts, which transitions are logged, because writing a line costs more than running a small job.

On a terminal, and with `-v 2`, `enable()` also prints a line for each attempt that has ended. These lines do not depend
on the project's `LOGGING`, with one exception: a failure is printed once, by a handler of the project, or here with its
traceback. They go through a logger of their own, `django_pgqueue.jobs`, so that the thread that calls the log handlers
prints them: an output that nobody reads must not stop a thread of the engine.

`JobContextFilter` is for the project's `LOGGING`: it adds the running job to the records of the task's own loggers.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Final, TextIO

from . import signals
from .ground.log_events import JOB_FIELDS, event, job_fields
from .ground.visible_text import visible
from .signals import TaskSignal
from .tasks.context import running_job
from .tasks.registry import in_words

logger = logging.getLogger("django_pgqueue.worker")
job_logger = logging.getLogger("django_pgqueue.jobs")

ERROR_CHARACTERS: Final = 200
"""How much of an error a printed line contains."""
FRAME: Final = '  File "'
PACKAGE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
Line = Callable[[str | None, dict[str, Any]], None]
enabled: Final[dict[TaskSignal, tuple[Line, ...]]] = {}
"""The lines of each transition that is logged or printed."""


def enable(output: TextIO | None = None, *, starts: bool = False, coloured: bool = False) -> None:
    """Start logging in this process and its forks. Only the levels that are enabled now are logged.

    Args:
        output: Where to print a line for each attempt that has ended (`-v 2`). None: print nothing.
        starts: Whether to print a line for each attempt that starts, too (`-v 3`).
        coloured: Whether the printed lines are coloured, because `output` is a terminal.
    """
    disable()
    for signal, (level, line) in LINES.items():
        if logger.isEnabledFor(level):
            enabled[signal] = (line,)
    if output is None:
        return
    handler = JobLineHandler(output)
    formatter = ColouredFormatter if coloured else logging.Formatter
    handler.setFormatter(formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    job_logger.handlers, job_logger.propagate = [handler], False
    job_logger.setLevel(logging.INFO)
    for signal, line in PRINTED.items():
        if starts or signal is not signals.job_started:
            enabled[signal] = (*enabled.get(signal, ()), line)
    _print_failures_once()


def _print_failures_once() -> None:
    """Leave failures to a handler of the project that prints them. Without one, print them with the traceback."""
    for signal, line in FAILURES.items():
        level, logged = LINES[signal]
        if not logger.hasHandlers():  # Python's handler of last resort would print the failure too
            enabled[signal] = (line,)
        elif _is_printed_by_handler(level):
            enabled[signal] = (logged,)


def _is_printed_by_handler(level: int) -> bool:
    """Return whether the project's `LOGGING` prints records of a level on a standard stream."""
    if not logger.isEnabledFor(level):
        return False
    current: logging.Logger | None = logger
    while current is not None:
        for handler in current.handlers:
            stream = getattr(handler, "stream", None)
            if handler.level <= level and stream is not None and stream in (sys.stdout, sys.stderr):
                return True
        current = current.parent if current.propagate else None
    return False


def disable() -> None:
    """Stop logging transitions in this process."""
    enabled.clear()
    job_logger.handlers = []


def write(signal: TaskSignal, task_name: str | None, about: dict[str, Any]) -> None:
    """Write the lines of a transition that are enabled; `about` holds the arguments of its signal."""
    for line in enabled.get(signal, ()):
        line(task_name, about)


# ---------------------------------------------------------------------------- the running job


class JobContextFilter(logging.Filter):
    """Adds the running job to each record: `job_id`, `execution_id`, `task`, `queue` and `attempt`.

    Add it to the handlers of your `LOGGING` whose format contains these names. Outside a job their value is None. A
    record that has a field of this name already keeps it. Lines in coroutines, in `asyncio.to_thread()` and in isolated
    processes have the right job; a thread that the task starts needs a copy of the context.

    Example:
        >>> LOGGING["filters"] = {"job": {"()": "django_pgqueue.log.JobContextFilter"}}
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields. Return True: every record passes."""
        add_job(record)
        for name in JOB_FIELDS:
            if not hasattr(record, name):
                setattr(record, name, None)
        return True


def add_job(record: logging.LogRecord) -> None:
    """Add the running job to a record, if there is one. Keep the fields that the record has."""
    job = running_job.get()
    if job is not None:
        fields = job_fields(job)
        vars(record).update({name: fields[name] for name in fields.keys() - vars(record).keys()})


# ---------------------------------------------------------------------------- log records


def _extra(name: str, task_name: str | None, about: dict[str, Any], *others: str) -> dict[str, Any]:
    """Return the fields of a record. `others` are further arguments of the signal that it contains."""
    fields = {name: about[name] for name in ("duration_seconds", *others) if about.get(name) is not None}
    if class_name := _class_name(about):
        fields["exception_class"] = class_name
    return event(
        name,
        job_id=about.get("job_id"),
        execution_id=about.get("execution_id"),
        task=task_name,
        queue=about.get("queue_name"),
        attempt=about.get("attempt"),
        **fields,
    )


def _started(task_name: str | None, about: dict[str, Any]) -> None:
    extra = _extra("job_started", task_name, about)
    logger.debug("job %s (%s) started", about["job_id"], in_words(task_name), extra=extra)


def _succeeded(task_name: str | None, about: dict[str, Any]) -> None:
    extra, duration_ms = _extra("job_succeeded", task_name, about), 1000 * about["duration_seconds"]
    logger.info("job %s (%s) succeeded in %.3f ms", about["job_id"], in_words(task_name), duration_ms, extra=extra)


def _cancelled(task_name: str | None, about: dict[str, Any]) -> None:
    extra = _extra("job_cancelled", task_name, about)
    logger.info("job %s (%s) cancelled", about["job_id"], in_words(task_name), extra=extra)


def _snoozed(task_name: str | None, about: dict[str, Any]) -> None:
    extra, delay_seconds = _extra("job_snoozed", task_name, about, "delay_seconds"), about["delay_seconds"]
    logger.info("job %s (%s) snoozed for %.0f s", about["job_id"], in_words(task_name), delay_seconds, extra=extra)


def _suspended(task_name: str | None, about: dict[str, Any]) -> None:
    extra = _extra("job_suspended", task_name, about, "delay_seconds")
    logger.info("job %s (%s) is suspended: %s", about["job_id"], in_words(task_name), _error(about), extra=extra)


def _released(task_name: str | None, about: dict[str, Any]) -> None:
    extra = _extra("job_released", task_name, about)
    logger.debug("job %s (%s) released", about["job_id"], in_words(task_name), extra=extra)


def _failed(task_name: str | None, about: dict[str, Any]) -> None:
    _log_failure(
        logging.WARNING,
        "job %s (%s) failed at attempt %s with %s; retrying in %.0f s",
        (
            about["job_id"],
            in_words(task_name),
            about["attempt"],
            _class_name(about) or _error(about),  # a lost process has no exception
            about.get("retry_seconds") or 0.0,
        ),
        about,
        _extra("job_failed", task_name, about, "retry_seconds"),
    )


def _dead(task_name: str | None, about: dict[str, Any]) -> None:
    _log_failure(
        logging.ERROR,
        "job %s (%s) is dead after attempt %s: %s",
        (about["job_id"], in_words(task_name), about["attempt"], _error(about)),
        about,
        _extra("job_dead", task_name, about),
    )


def _log_failure(
    level: int, message: str, arguments: tuple[Any, ...], about: dict[str, Any], extra: dict[str, Any]
) -> None:
    """Log a failed attempt with its traceback. The exception of an isolated job is in another process: log its text."""
    if not logger.isEnabledFor(level):
        return
    exception = about.get("exception")
    exc_info = None if exception is None else (type(exception), exception, exception.__traceback__)
    record = logger.makeRecord(logger.name, level, __file__, 0, message, arguments, exc_info, "_log_failure", extra)
    if exception is None and about.get("traceback"):
        record.exc_text = about["traceback"].rstrip("\n")  # what formatters print after the message
    logger.handle(record)


LINES: Final[dict[TaskSignal, tuple[int, Line]]] = {
    signals.job_started: (logging.DEBUG, _started),
    signals.job_succeeded: (logging.INFO, _succeeded),
    signals.job_cancelled: (logging.INFO, _cancelled),
    signals.job_snoozed: (logging.INFO, _snoozed),
    signals.job_suspended: (logging.INFO, _suspended),
    signals.job_released: (logging.DEBUG, _released),
    signals.job_failed: (logging.WARNING, _failed),
    signals.job_dead: (logging.ERROR, _dead),
}


# ---------------------------------------------------------------------------- printed lines


class JobLineHandler(logging.StreamHandler[TextIO]):
    """Prints the lines of `-v 2`. Lines that cannot be written are lost, for example because the disk is full."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing. The inherited method would print a traceback for each line."""


class ColouredFormatter(logging.Formatter):
    """Colours a line on a terminal by the outcome of its job."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line with the codes of its colour, if it has one."""
        line, colour = super().format(record), getattr(record, "colour", "")
        return f"\x1b[{colour}m{line}\x1b[0m" if colour else line


GREEN, YELLOW, RED = "32", "33", "31"


def _printed(outcome: str, colour: str = "", *, with_traceback: bool = False) -> Line:
    """Return a function that prints the line of an attempt with this outcome."""

    def print_line(task_name: str | None, about: dict[str, Any]) -> None:
        text = f"job {about['job_id']} {in_words(task_name)} {outcome}{_circumstances(about)}"
        details = "; ".join(filter(None, [_delay(about), _error(about)]))
        text = f"{text}: {details}" if details else text
        if with_traceback and (own := own_frames(about.get("traceback") or "")):
            text = f"{text}\n{own}"
        job_logger.info("%s", text, extra={"colour": colour})

    return print_line


def own_frames(traceback: str) -> str:
    """Return a traceback without the frames of this package, and without characters that change a terminal."""
    kept, is_own = [], True
    for line in traceback.rstrip("\n").split("\n"):
        if line.startswith(FRAME):
            is_own = not line.startswith(f"{FRAME}{PACKAGE}")
        elif not line.startswith("    "):
            is_own = True
        if is_own:
            kept.append(line)
    return visible("\n".join(kept))


def _circumstances(about: dict[str, Any]) -> str:
    """Return the queue, the attempt and the duration in parentheses, as far as they are known."""
    known = []
    if "queue_name" in about:
        known.append(f"queue {in_words(about['queue_name'])}")
    if "attempt" in about:
        known.append(f"attempt {about['attempt']}")
    if "duration_seconds" in about:
        seconds = about["duration_seconds"]
        known.append(f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s")
    return f" ({', '.join(known)})" if known else ""


def _delay(about: dict[str, Any]) -> str:
    seconds = about.get("retry_seconds", about.get("delay_seconds"))
    return "" if seconds is None else f"due in {seconds:.0f} s"


def _class_name(about: dict[str, Any]) -> str:
    """Return the name of the exception's class; "" without an exception. An isolated job has only its path."""
    exception = about.get("exception")
    path = about.get("exception_class") or ""
    return path.rpartition(".")[2] if exception is None else type(exception).__name__


def _error(about: dict[str, Any]) -> str:
    """Return the class and the text of the error on one line, without characters that could forge other lines."""
    text = ": ".join(filter(None, [_class_name(about), about.get("error")]))
    text = " ".join(text.split())
    text = f"{text[:ERROR_CHARACTERS]}…" if len(text) > ERROR_CHARACTERS else text
    return "".join(character if character.isprintable() else "?" for character in text)


FAILURES: Final[dict[TaskSignal, Line]] = {
    signals.job_failed: _printed("failed", YELLOW, with_traceback=True),
    signals.job_dead: _printed("is dead", RED, with_traceback=True),
}
"""The lines of failures if no handler of the project prints them, so that each is printed once."""
PRINTED: Final[dict[TaskSignal, Line]] = {
    signals.job_started: _printed("started"),
    signals.job_succeeded: _printed("succeeded", GREEN),
    signals.job_failed: _printed("failed", YELLOW),
    signals.job_dead: _printed("is dead", RED),
    signals.job_cancelled: _printed("cancelled"),
    signals.job_snoozed: _printed("snoozed"),
    signals.job_suspended: _printed("is suspended"),
    signals.job_released: _printed("released"),
}
