"""The settings dict `PGQUEUE`: defaults, units and validation.

All other modules read settings through `get_settings()`, which validates the dict on its first call and again after
`override_settings`. The system check pgqueue.E001 reports unknown keys and invalid values (see `checks`).
`get_settings()` raises `ImproperlyConfigured` with the same messages, so no code runs with invalid settings.
"""

# ruff: noqa: RUF009 -- option() returns a field, which ruff cannot know

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Final, Literal

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_pgqueue.declared.retry import Backoff
from django_pgqueue.durations import Duration, seconds

from .setting_kinds import CHECKS, DEFAULT_RETENTION, DURATIONS, Retention, retention_seconds
from .setting_kinds import DAY_SECONDS as DAY_SECONDS


def option(default: Any, kind: str) -> Any:
    """Return a dataclass field. `kind` names the entry of `setting_kinds.CHECKS` that validates its value."""
    return field(default=default, metadata={"kind": kind}, repr=kind != "private")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Validated `PGQUEUE` settings with defaults. Durations are seconds (float), sizes are bytes (int)."""

    MAX_ATTEMPTS: int = option(10, "count")
    """Maximum attempts of a job. After the last failure it is dead: about three hours with the default backoff."""
    BACKOFF: Backoff | Duration | None = option(None, "backoff")
    """Delay before the next attempt, for tasks without a backoff of their own. None: `exponential()`."""
    TIMEOUT: float | None = option(None, "timeout")
    """Seconds that one attempt may run, for tasks without a timeout of their own. None: no limit."""
    QUEUES: Sequence[str] | None = option(None, "queues")
    """The names of all queues. Tasks and `using()` refuse other names. None: every name is valid."""
    CRASH_BUDGET: int = option(3, "count")
    """Maximum crashes of a job: losses of its worker while it ran. After the last the job is dead, whatever attempts
    are left."""
    CONCURRENCY: int = option(10, "count")
    """Maximum number of jobs that one worker process runs at a time."""
    PROCESSES: int = option(1, "count")
    """Number of worker processes of one supervisor."""
    LEASE: float = option(60.0, "duration")
    """Seconds from a heartbeat until the worker's leases expire. The heartbeat interval is a quarter of it."""
    RESCUE_INTERVAL: float = option(5.0, "duration")
    """Seconds between two searches of a worker for executions with an expired lease."""
    PRUNE_INTERVAL: float = option(60.0, "duration")
    """Seconds between two rounds in which a worker deletes finished jobs past their retention."""
    SCHEDULE_INTERVAL: float = option(5.0, "duration")
    """Maximum seconds between two polls of a worker for due schedules. 60 while there are no schedules."""
    POLL_INTERVAL: float = option(30.0, "duration")
    """Maximum seconds that an idle worker sleeps while it receives notifications."""
    POLL_INTERVAL_WITHOUT_LISTEN: float = option(1.0, "duration")
    """Maximum seconds that an idle worker sleeps while it receives no notifications."""
    GRACE: float = option(25.0, "duration")
    """Seconds that running jobs may continue after SIGTERM. Then the worker requeues them."""
    CANCEL_GRACE: float = option(10.0, "duration")
    """Seconds that a running job may continue after a request to cancel it. Then the worker stops it."""
    RETENTION: Mapping[str, Retention] | None = option(None, "retention")
    """How long finished jobs are kept: {"succeeded": …, "cancelled": …, "dead": …}, durations or "forever"."""
    MAX_ARGUMENTS_BYTES: int = option(256 * 1024, "count")
    """Maximum size of a job's arguments as JSON. `enqueue()` raises `ValueError` for larger ones. A codec may make them
    larger, see `most_stored_bytes`."""
    MAX_RESULT_BYTES: int = option(64 * 1024, "count")
    """Maximum size of a return value as JSON. A job with a larger one is dead (`ResultNotStored`)."""
    MAX_TRACEBACK_BYTES: int = option(16 * 1024, "count")
    """Maximum size of a stored traceback. The middle of a longer one is cut out."""
    STATS: bool = option(default=True, kind="flag")
    """Whether workers count the attempts that end, for `stats.throughput()` and the rates."""
    STATS_RETENTION: float = option(14 * DAY_SECONDS, "duration")
    """Seconds that these counts are kept."""
    AUDIT_RETENTION: float = option(365 * DAY_SECONDS, "duration")
    """Seconds that the audit keeps who changed which jobs. Only ended acts are removed."""
    EVENT_RETENTION: float = option(30 * DAY_SECONDS, "duration")
    """Seconds that events are kept for the jobs that wait for them later."""
    BATCH_RETENTION: float = option(30 * DAY_SECONDS, "duration")
    """Seconds that a complete batch is kept. It is removed when its jobs are removed too."""
    CLAIM_LIMIT: int = option(500, "count")
    """Maximum number of jobs in one claim."""
    KEEP_LOGS: str | None = option(None, "level")
    """Level from which executions keep the log lines of their task, for tasks without `keep_logs`. None: they keep
    none."""
    UNKNOWN_TASK_LIMIT: float = option(3600.0, "duration")
    """Seconds that a job waits for a worker that knows its task and accepts its arguments. Then the job is dead."""
    CONN_MAX_AGE: float = option(600.0, "duration")
    """Seconds that a worker's thread keeps a Django database connection open between jobs."""
    NOTIFY: bool = option(default=True, kind="flag")
    """Whether `enqueue()` wakes sleeping workers. Otherwise workers find jobs only by polling."""
    LISTEN_DATABASE: str | Mapping[str, str] | None = option(None, "listen")
    """Database alias for LISTEN, if the jobs' alias uses a transaction pooler. None: the jobs' alias. A dict has the
    alias for LISTEN of each of several databases."""
    ENVIRONMENT: str = option("", "environment")
    """Name of the environment, such as "production". A worker refuses a database of another environment."""
    CLONE_GUARD: Literal["refuse", "warn", "off"] = option("refuse", "clone_guard")
    """How a worker treats a database of another installation, such as a restored dump. "refuse": it waits until
    somebody runs `manage.py pgqueue adopt`. "warn": it logs a warning and works. "off": it does not check."""
    IMMEDIATE: bool = option(default=False, kind="flag")
    """Whether `enqueue()` runs due jobs at once, in the caller's thread and transaction. For tests and shells only."""
    MIDDLEWARE: Sequence[str] = option((), "paths")
    """Dotted paths of middleware classes, the outermost first. See `middleware`."""
    CODECS: Sequence[str | None] = option((), "codecs")
    """Dotted paths of codec classes. The first encodes stored arguments and results, all decode them. See `codecs`."""
    METRICS_PORT: int | None = option(None, "port")
    """TCP port on which a worker serves its health and its metrics. None: a worker opens no port."""
    METRICS_ADDRESS: str = option("127.0.0.1", "address")
    """IP address of that port."""
    METRICS_TOKEN: str | None = option(None, "private")
    """Token with which `metrics.metrics_view` can be read. None: only staff users can read it."""
    TASK_MODULES: Sequence[str] = option((), "modules")
    """Modules with tasks, in addition to `<app>.tasks` of each installed app and the modules below it."""

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two heartbeats: a quarter of the lease, so that three may be missed."""
        return self.LEASE / 4

    @property
    def listen_aliases(self) -> frozenset[str]:
        """The aliases that are for LISTEN only."""
        if self.LISTEN_DATABASE is None or isinstance(self.LISTEN_DATABASE, str):
            return frozenset(filter(None, [self.LISTEN_DATABASE]))
        return frozenset(to for alias, to in self.LISTEN_DATABASE.items() if to != alias)

    def listen_alias(self, alias: str) -> str:
        """Return the alias for LISTEN of a database with jobs."""
        if self.LISTEN_DATABASE is None or isinstance(self.LISTEN_DATABASE, str):
            return self.LISTEN_DATABASE or alias
        return self.LISTEN_DATABASE.get(alias, alias)

    def retention_seconds(self, state: str) -> float | None:
        """Return how many seconds finished jobs of `state` are kept, or None if forever."""
        return retention_seconds((self.RETENTION or {}).get(state, DEFAULT_RETENTION[state]))

    @property
    def most_stored_bytes(self) -> int:
        """Maximum size of a job's arguments in its row. Workers read no larger ones; see `sql.clauses.ARGUMENTS`."""
        return max(1024 * 1024, 4 * self.MAX_ARGUMENTS_BYTES)


OPTIONS: Final = {option.name: option for option in fields(Settings)}


SIMILAR: Final = 0.75
"""How similar the name of a setting must be to `PGQUEUE`, so that it may be meant."""


def problems(given: object) -> list[str]:
    """Return the problems of a `PGQUEUE` dict, one sentence each. The list is empty if the dict is valid."""
    if not isinstance(given, Mapping):
        return ["PGQUEUE must be a dict."]
    found = []
    for key, value in given.items():
        if key not in OPTIONS:
            close = difflib.get_close_matches(str(key).upper(), OPTIONS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else f" The options are {', '.join(OPTIONS)}."
            found.append(f"PGQUEUE has no option {key!r}.{hint}")
            continue
        kind = OPTIONS[key].metadata["kind"]
        is_valid, requirement = CHECKS[kind]
        if not is_valid(value):
            found.append(f"PGQUEUE[{key!r}] {requirement}{'' if kind == 'private' else f', not {value!r}'}.")
    return found


def meant_setting(name: str, value: object) -> str:
    """Return what a setting of the project should be called if it seems to be meant for this package; "" otherwise.

    `PGQEUE = {"LEASE": 60}` is meant as `PGQUEUE`, because it has an option, and `PGQUEUE_LEASE = 60` as an option of
    it. A setting of another package that only has a similar name is left alone.
    """
    option = name.removeprefix("PGQUEUE_")
    if option != name and option in OPTIONS:
        return f"PGQUEUE = {{{option!r}: …}}"
    is_close = difflib.SequenceMatcher(None, name.replace("_", "").removeprefix("DJANGO"), "PGQUEUE").ratio() >= SIMILAR
    has_option = isinstance(value, Mapping) and any(str(key).upper() in OPTIONS for key in value)
    return "PGQUEUE = {…}" if is_close and has_option else ""


@cache
def get_settings() -> Settings:
    """Return the project's settings.

    Raises:
        ImproperlyConfigured: `PGQUEUE` has an unknown option or an invalid value. The message lists every problem.
    """
    given = getattr(django_settings, "PGQUEUE", {})
    if found := problems(given):
        raise ImproperlyConfigured(" ".join(found))
    durations = {key for key in given if OPTIONS[key].metadata["kind"] in DURATIONS and given[key] is not None}
    options: dict[str, Any] = {key: seconds(value) if key in durations else value for key, value in given.items()}
    return Settings(**options)


def known_queues() -> Sequence[str] | None:
    """Return `PGQUEUE["QUEUES"]`, or None if every name is valid.

    Also None while the settings are invalid, so that tasks can be imported and pgqueue.E001 reports the error.
    """
    with suppress(ImproperlyConfigured):
        return get_settings().QUEUES
    return None


def clear_at_change(cached: Any, *settings: str) -> None:
    """Clear the cache of a function when a test overrides `PGQUEUE` or one of these settings."""

    def clear(*, setting: str, **kwargs: object) -> None:
        if setting in ("PGQUEUE", *settings):
            cached.cache_clear()

    setting_changed.connect(clear, weak=False)


clear_at_change(get_settings, "DATABASES")
