"""`python -m tests.benchmarks`, which `bin/bench` runs."""

from tests.benchmarks.cli import main

if __name__ == "__main__":
    main()
