"""Measure the resident memory of this process. It is compared with `--max-rss-mb`, also in isolated processes."""

from __future__ import annotations

import resource


def resident_mib() -> float:
    """Return this process's resident memory in MiB. On systems without /proc this is the peak value."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
