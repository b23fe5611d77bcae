"""An adapter for a benchmark of other people, and the cells that run it without their harness."""
