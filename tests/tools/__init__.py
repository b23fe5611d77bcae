"""Programs for contributors, each with its own tests beside it: faults, mutation, model, peers, benchmarks."""
