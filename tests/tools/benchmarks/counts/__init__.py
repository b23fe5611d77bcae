"""Count what one warm plain job costs, instead of timing it: `bin/bench --counts`.

Times on a shared machine differ by half from run to run, counts do not. The package `jobcounts` is the program that is
counted. It runs as a process of its own, on a private server.
"""
