"""Starts several processes of a worker that has no command for it: `start.py PROCESSES WORD…`, of this Python.

They stay in the session, whose CPU time is measured. SIGTERM is passed on to each. "{process}" in a word is its number.
"""

import os
import signal
import subprocess
import sys


def main() -> None:
    count, *words = sys.argv[1:]
    commands = [[sys.executable, *(word.replace("{process}", str(n)) for word in words)] for n in range(int(count))]
    if len(commands) == 1:
        os.execv(sys.executable, commands[0])  # noqa: S606 -- words of the system's own
    processes = [subprocess.Popen(command) for command in commands]

    def stop(*_: object) -> None:
        for process in processes:
            process.terminate()

    signal.signal(signal.SIGTERM, stop)
    for process in processes:
        process.wait()


if __name__ == "__main__":
    main()
