// A remote worker in one file, without dependencies. It needs Node 18 or later.
//
//   PGQUEUE_REMOTE_URL=https://example.com/remote/ PGQUEUE_REMOTE_TOKEN=pgq_... node worker.mjs ./tasks.mjs
//
// The default export of tasks.mjs has a function for each task, by the name of the task in the Django project:
//
//   export default {
//     "shop.video.encode": async ({ args, kwargs, signal, note }) => { ... return result; },
//   };
//
// It runs one job at a time: start several workers for more. `signal` is aborted if the job must stop: because it was
// cancelled, its lease was lost, or its time is over. Pass it to fetch(), spawn() and so on. `note(done, total,
// message)` reports progress. A function must not block the event loop for seconds, because no heartbeat is sent
// meanwhile: run heavy work in a child process.
//
// SIGTERM and Ctrl-C: the worker ends after its job. The second signal stops the job, and releases it.

import os from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const { PGQUEUE_REMOTE_URL, PGQUEUE_REMOTE_TOKEN, PGQUEUE_REMOTE_WAIT = "20" } = process.env;
const server = new URL(`${PGQUEUE_REMOTE_URL.replace(/\/*$/, "")}/v1/`);
if (server.protocol !== "https:" && !["localhost", "127.0.0.1", "[::1]"].includes(server.hostname)) {
  throw new Error("PGQUEUE_REMOTE_URL would send the token without encryption: use https");
}
const TEMPORARY = new Set([0, 408, 425, 429, 500, 502, 503, 504]); // 0: the server did not answer
const LONGEST_PAUSE = 15; // seconds between claims if there is no work, and between requests during an outage
const STOP_SECONDS = 10; // how long a task may take to stop
const LONGEST_TIMER = 2 ** 31 - 1; // milliseconds: setTimeout() fires at once for more

const tasks = (await import(pathToFileURL(path.resolve(process.argv[2])))).default;
const quit = new AbortController(); // aborted by the first signal
const hurry = new AbortController(); // aborted by the second signal
for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => (quit.signal.aborted ? hurry : quit).abort());

class ServerError extends Error {
  constructor(detail, status, retryAfter = 0) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const isTemporary = (error) => TEMPORARY.has(error.status);

async function post(address, body, { seconds = 10, signal = hurry.signal } = {}) {
  let response, answer;
  const ending = new AbortController();
  const end = () => ending.abort();
  const timer = setTimeout(end, seconds * 1000);
  signal.addEventListener("abort", end);
  if (signal.aborted) end();
  try {
    response = await fetch(new URL(address, server), {
      method: "POST",
      headers: { Authorization: `Bearer ${PGQUEUE_REMOTE_TOKEN}`, "Content-Type": "application/json" },
      body: JSON.stringify(body),
      redirect: "error",
      signal: ending.signal,
    });
    answer = await response.json();
  } catch (error) {
    // An answer that is not JSON comes from a proxy.
    throw new ServerError(`${address}: ${error.cause ?? error}`, response?.ok === false ? response.status : 0);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", end);
  }
  // If the operation failed for an execution, the answer still has a result for it.
  if (response.ok || (body.executions && answer.executions)) return answer;
  const detail = `${address}: ${response.status} ${answer.detail ?? ""}`;
  throw new ServerError(detail, response.status, Number(response.headers.get("Retry-After")) || 0);
}

// Sleeps longer each time, with a random part, so that machines do not ask together.
class Backoff {
  #seconds = 0.5;

  async pause(signal, { least = 0, passed = 0 } = {}) {
    const seconds = Math.max(this.#seconds * (0.8 + 0.4 * Math.random()) - passed, least, 0);
    this.#seconds = Math.min(2 * this.#seconds, LONGEST_PAUSE);
    await sleep(seconds * 1000, null, { signal }).catch(() => {});
  }
}

// Send a request until the server has answered, or until the signal.
async function persist(signal, send) {
  for (const backoff = new Backoff(); ; ) {
    try {
      return await send();
    } catch (error) {
      if (!isTemporary(error) || signal.aborted) throw error;
      console.warn(error.message);
      await backoff.pause(signal, { least: error.retryAfter });
    }
  }
}

// Extend the lease until the job has ended. Ask the job to stop if it was cancelled, or if its lease is lost.
async function keepLease(job, sentAt, attempt) {
  const lease = job.lease_seconds * 1000;
  let until = sentAt + lease;
  let pause = registered.extend_seconds;
  while (await sleep(pause * 1000, true, { signal: attempt.ended.signal }).catch(() => false)) {
    const at = performance.now();
    try {
      const item = { execution: job.execution, progress: attempt.progress };
      const answer = await post("extend", { worker, executions: [item] }, { seconds: registered.extend_seconds });
      const [{ result, cancel_requested: isCancelled }] = answer.executions;
      if (result === "lost" || result === "unknown") attempt.stop.abort("lost");
      if (result === "done") until = at + lease;
      if (isCancelled) attempt.stop.abort("cancelled");
      pause = registered.extend_seconds;
    } catch (error) {
      console.warn(error.message);
      pause = Math.min(2, registered.extend_seconds);
    }
    // Stop before the lease ends: then another worker may start the job.
    if (performance.now() > until - 0.2 * lease) attempt.stop.abort("lost");
  }
}

// Run the function of the task. Return the operation that reports how it ended, and its item.
async function runTask(job, attempt) {
  const { signal } = attempt.stop;
  if (!Object.hasOwn(tasks, job.task)) return ["release", { unknown: true, reason: "this worker has no such task" }];
  const limit = Math.min((job.timeout_seconds ?? Infinity) * 1000, LONGEST_TIMER);
  const timer = setTimeout(() => attempt.stop.abort("timeout"), limit);
  const note = (done, total = null, message = "") => (attempt.progress = { done, total, message });
  try {
    const result = await tasks[job.task]({ args: job.args, kwargs: job.kwargs, signal, note, job });
    return ["complete", { result: result ?? null }];
  } catch (error) {
    if (!signal.aborted) return ["fail", { error: String(error), traceback: String(error?.stack ?? "") }];
    if (signal.reason === "stopping") return ["release", { reason: "the worker stops" }];
    if (signal.reason === "cancelled") return ["fail", { error: "cancelled while it ran", then: "cancel" }];
    if (signal.reason === "timeout") return ["fail", { error: `longer than ${job.timeout_seconds} s` }];
    return null; // another worker has the job
  } finally {
    clearTimeout(timer);
  }
}

// Report how the job ended, until the server has written it. What it cannot store becomes a failure without a retry.
async function report(job, operation, item) {
  const send = async (name, more) => {
    const answer = await post(name, { executions: [{ execution: job.execution, ...more }] }, { signal: never });
    const [{ result }] = answer.executions;
    if (result === "locked") throw new ServerError(`${name}: locked`, 503);
    console.log(`job ${job.job_id} (${job.task}): ${name}: ${result}`);
    return result;
  };
  const fail = (error) => persist(hurry.signal, () => send("fail", { error, then: "dead" }));
  try {
    const result = await persist(hurry.signal, () => send(operation, item));
    if (result === "refused") await fail("the database refuses the report");
  } catch (error) {
    if (error.status !== 400 && error.status !== 413) throw error;
    await fail(`the server refuses the report: ${error.message}`.slice(0, 1000));
  }
}

async function run(job, sentAt) {
  const attempt = { stop: new AbortController(), ended: new AbortController(), progress: undefined };
  const lease = keepLease(job, sentAt, attempt);
  hurry.signal.addEventListener("abort", () => attempt.stop.abort("stopping"), { signal: attempt.ended.signal });
  attempt.stop.signal.addEventListener("abort", () => {
    console.warn(`job ${job.job_id} (${job.task}) must stop: ${attempt.stop.signal.reason}`);
    const kill = setTimeout(() => process.exit(1), STOP_SECONDS * 1000); // nothing else ends a function that does not
    attempt.ended.signal.addEventListener("abort", () => clearTimeout(kill));
  });
  try {
    const ending = await runTask(job, attempt);
    if (ending) await report(job, ...ending);
  } finally {
    attempt.ended.abort();
    await lease;
  }
}

async function claimAndRun() {
  const names = Object.keys(tasks);
  // The lease may begin when the request is sent. A longer wait would leave too little of it.
  const wait = Math.min(Number(PGQUEUE_REMOTE_WAIT), registered.max_wait_seconds, registered.extend_seconds);
  for (let idle = new Backoff(); !quit.signal.aborted; ) {
    const sentAt = performance.now();
    const body = { worker, limit: 1, wait_seconds: wait, tasks: names };
    let least = 0;
    try {
      const { executions } = await post("claim", body, { seconds: wait + 15, signal: quit.signal });
      for (const job of executions) await run(job, sentAt);
      if (executions.length) {
        idle = new Backoff();
        continue;
      }
    } catch (error) {
      if (quit.signal.aborted) break;
      if (!isTemporary(error)) throw error;
      console.warn(error.message);
      least = error.retryAfter;
    }
    // The time for which the server has waited for work is a part of the pause.
    await idle.pause(quit.signal, { least, passed: (performance.now() - sentAt) / 1000 });
  }
}

const never = new AbortController().signal;
let registered, worker;
try {
  const about = { name: os.hostname().slice(0, 100), pid: process.pid };
  registered = await persist(quit.signal, () => post("workers", about, { signal: quit.signal }));
  worker = registered.worker;
  console.log(`worker ${registered.worker_id} is ready`);
  await claimAndRun();
} catch (error) {
  if (!quit.signal.aborted) {
    console.error(`the worker stops: ${error.message}`);
    process.exitCode = 1; // a service manager starts it again
  }
}
// Release what is left, such as the jobs of a claim that the signal has ended.
if (worker) await post("workers/stop", { worker }, { signal: never }).catch((error) => console.warn(error.message));
process.exit();
