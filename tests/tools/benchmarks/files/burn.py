"""Uses so much of a core, in bursts of a millisecond, until it is killed: `burn.py SHARE`."""

import sys
import time

BURST_SECONDS = 0.001


def main() -> None:
    share = float(sys.argv[1])
    began, used = time.monotonic(), time.process_time()
    while True:
        until = time.process_time() + BURST_SECONDS
        while time.process_time() < until:
            pass
        ahead = (time.process_time() - used) / share - (time.monotonic() - began)
        time.sleep(max(0.0, ahead))


if __name__ == "__main__":
    main()
