"""`python -m tests.tools.mutation`: see `runner`."""

import sys

from tests.tools.mutation.runner import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
