"""The parts of the list of jobs and of the page of a job."""
