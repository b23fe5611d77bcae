"""`python -m tests.tools.benchmarks`, which `bin/bench` runs."""

from tests.tools.benchmarks.cli import main

if __name__ == "__main__":
    main()
