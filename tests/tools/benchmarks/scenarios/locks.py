"""Scenarios 16a to 16c: one job at a time for each key, beside Procrastinate's `lock`; rates, beside django-ox's."""

from __future__ import annotations

from collections.abc import Sequence

from tests.tools.benchmarks.files import record
from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems import limited
from tests.tools.benchmarks.systems.system import Load, System

LOCKED = 10_000
"""Of 1,000 keys, as in the tasks and adapters."""
WAITING = 100_000
BESIDE = {"us": 50_000, "procrastinate": 2_000}
"""About two seconds of work each."""
RATED = 1_000
RATE, PERIOD_SECONDS = 100, 1
"""As in the task and in django-ox's settings."""

PROCRASTINATE = """

@app.task(name="locked")
def locked(number):
    record.ran(number)
"""
PROCRASTINATE_ADAPTER = """

def enqueue_many(task, numbers):
    if task != "locked":
        app.tasks[task].batch_defer(*({"number": number} for number in numbers))
        return
    by_lock = {}
    for number in numbers:
        by_lock.setdefault(str(number % 1000), []).append({"number": number})
    for lock, calls in by_lock.items():
        deferring(task, lock=lock).batch_defer(*calls)
"""
FILL = {
    "us": (
        "WITH held AS (INSERT INTO pgqueue_limit_state (limit_key, full_at, held_until) "
        "SELECT 'alone', now() + interval '1 day', now() + interval '1 day') "
        f"{limited.FILL}"
    ),
    "procrastinate": (
        "INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args, status) "
        "SELECT 'default', 'locked', 'alone', '{\"number\": 0}', "
        "(CASE WHEN n = 1 THEN 'doing' ELSE 'todo' END)::procrastinate_job_status "
        "FROM generate_series(1, %(jobs)s) AS n"
    ),
}
"""Jobs of one key that cannot start: a job of the key runs, or the key is held."""
UNFINISHED = {
    "us": "SELECT count(*) FROM pgqueue_job WHERE finished_at IS NULL AND limit_key IS NULL",
    "procrastinate": "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing') AND lock IS NULL",
}
OX_SETTINGS = f"""
INSTALLED_APPS += ["oxpull"]
TASKS = {{
    "default": {{
        "BACKEND": "oxpull.backend.OxpullBackend",
        "OPTIONS": {{
            "WORKER_CLASS": "oxpull.worker.OxpullWorker",
            "RATE_LIMITS": {{
                "rated": {{"limit": {RATE}, "per": {PERIOD_SECONDS}, "tasks": ["app.tasks.began"]}},
            }},
        }},
    }}
}}
"""


def prepare(bench: Bench, system: System) -> None:
    """Give a system the tasks with keys."""
    if system.name == "us":
        bench.write(limited.FILES)
    if system.name == "procrastinate":
        added = {"work.py": PROCRASTINATE, "adapter.py": PROCRASTINATE_ADAPTER}
        bench.write({name: system.files[name] + text for name, text in added.items()})


def locked(bench: Bench, system: System) -> Figures:
    """Drain the jobs of 1,000 keys."""
    prepare(bench, system)
    return drained(bench, system, Load("locked"), range(jobs(LOCKED))).figures


def beside(bench: Bench, system: System) -> Figures:
    """Drain jobs without a key, then again beside jobs that wait for one key."""
    prepare(bench, system)
    system = system._replace(unfinished=lambda bench: bench.count(UNFINISHED[system.name]))
    count = jobs(BESIDE[system.name])
    free = drained(bench, system, Load("noop"), range(count)).jobs_per_second
    bench.connection.execute(FILL[system.name].encode(), {"jobs": jobs(WAITING)})
    bench.connection.execute("VACUUM ANALYZE")
    waiting = drained(bench, system, Load("noop"), range(count, 2 * count)).jobs_per_second
    return {"share": waiting / free, "free_per_second": free, "waiting_per_second": waiting}


def rated(bench: Bench, system: System) -> Figures:
    """Run jobs with a rate, by one worker."""
    prepare(bench, system)
    if system.name == "django-ox":
        with (bench.directory / "settings.py").open("a") as file:
            file.write(OX_SETTINGS)
        bench.run(("-m", "django", "migrate", "--verbosity", "0"))
    task = "began" if system.name == "django-ox" else "hundred"
    count = jobs(RATED)
    worker = bench.start(system.worker(Load(task)))
    bench.produce("bulk", task, 0, count)
    wait_for(lambda: not bench.runs[:count].count(0), 60 + 5 * count / RATE, "jobs that have not run", pause=0.05)
    bench.stop([worker])
    bench.check_each_ran_once(range(count))
    starts = sorted(bench.instants(record.STARTS)[:count])
    figures = {"of_rate": (count - 1) / (starts[-1] - starts[0]) / RATE, "most_in_a_second": most_within(starts, 1.0)}
    if system.name == "us":
        figures["most_claimed_in_a_second"] = most_within(claims(bench), 1.0)
    return figures


def claims(bench: Bench) -> list[float]:
    """Return when the executions were claimed, by the server's clock. Rates count these times."""
    rows = bench.connection.execute("SELECT extract(epoch FROM claimed_at)::float8 FROM pgqueue_execution").fetchall()
    return sorted(instant for (instant,) in rows)


def most_within(instants: Sequence[float], seconds: float) -> int:
    """The most of these sorted instants in any window of that length."""
    first = most = 0
    for place, instant in enumerate(instants):
        while instant - instants[first] >= seconds:
            first += 1
        most = max(most, place - first + 1)
    return most


LOCKS = Scenario(
    name="16a",
    title="drain 10 no-op jobs of each of 1,000 keys, one at a time for each key",
    measure=locked,
    takes_part=lambda system: system.name in ("us", "procrastinate", "two-statements"),
    jobs=lambda system: jobs(LOCKED),
    figure="jobs_per_second",
)
BACKLOG = Scenario(
    name="16b",
    title="drain 50,000 jobs without a key (Procrastinate: 2,000) beside 100,000 that wait for one key, against the "
    "same without",
    measure=beside,
    takes_part=lambda system: system.name in FILL,
    jobs=lambda system: 2 * jobs(BESIDE[system.name]),
    figure="share",
    targets=("us: ≥ 0.9",),
)
RATES = Scenario(
    name="16c",
    title="1,000 jobs with a rate of 100 a second, one worker",
    measure=rated,
    takes_part=lambda system: system.name in ("us", "django-ox"),
    jobs=lambda system: jobs(RATED),
    figure="of_rate",
    targets=("us: the rate is reached; most_claimed_in_a_second ≤ 109, because the burst is 10",),
)
