"""The environment variables of the protocol and of this adapter. README.md of the directory above describes them."""

from __future__ import annotations

import os
import time
from pathlib import Path


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


STARTED_AT = time.monotonic()
HERE = Path(__file__).resolve().parent
SYSTEM = "pgqueue"
SCENARIO = os.environ.get("SCENARIO", "long_horizon")
INSTANCE = _number("BENCH_INSTANCE_ID", 0)
SAMPLE_S = _number("SAMPLE_EVERY_S", 5)

RATE = _number("PRODUCER_RATE", 800)
RATE_FILE = os.environ.get("PRODUCER_RATE_CONTROL_FILE")
MODE = os.environ.get("PRODUCER_MODE", "fixed")
PACING = os.environ.get("PRODUCER_PACING", "adapter")
BATCH_MAX = _number("PRODUCER_BATCH_MAX", 128)
BATCH_S = _number("PRODUCER_BATCH_MS", 25) / 1000
TARGET_DEPTH = _number("TARGET_DEPTH", 1000)
PADDING = "x" * max(0, _number("JOB_PAYLOAD_BYTES", 256) - 96)

WORKERS = _number("WORKER_COUNT", 32)
PROCESSES = _number("PGQUEUE_PROCESSES", 1)
IS_ASYNC = os.environ.get("PGQUEUE_TASK") == "async"
