"""The storm: its lists are right, and a short one finds nothing."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import islice

import pytest

from tests.documents import PAGES
from tests.tools.faults import storm
from tests.tools.faults.lives import Violation
from tests.tools.faults.soak_faults import FAULTS
from tests.tools.faults.storm_faults import STORM

FIGURES = {
    "minutes": 1.0,
    "seed": 7,
    "drained_seconds": 1.0,
    **dict.fromkeys(("jobs", "overlaps", "ticks", "batches", "nodes", "stuck"), 0),
    **{key: {} for key in ("states", "executions", "faults", "limited", "chunks", "callbacks")},
}


def test_storm_names_promises_of_the_guarantees():
    named = {name for _, names in storm.PROMISES.values() for name in names}
    assert sorted(name for name in named if f"- `{name}`:" not in PAGES["docs/concepts/guarantees.md"]) == []


def test_storm_injects_known_faults_and_all_of_its_own():
    assert set(STORM) <= set(storm.BLOWING) <= {*FAULTS, *STORM}


def test_storm_injects_each_fault_before_one_comes_again():
    names = storm._each_once(random.Random(1), without=("pooler restarted",))
    first = list(islice(names, len(storm.BLOWING) - 1))
    assert {*first, "pooler restarted"} == set(storm.BLOWING)


def test_summary_says_of_each_promise_whether_it_was_kept():
    violations = [str(Violation("I28", 5, "became dead")), str(Violation("I99", 6, "is odd"))]
    lines = storm.lines({**FIGURES, "violations": violations})
    about = {line.split()[1]: line.split()[0] for line in lines if line.startswith(("kept", "VIOLATED"))}
    assert about == {**dict.fromkeys(storm.PROMISES, "kept"), "I28": "VIOLATED", "I99:": "VIOLATED"}
    assert lines[-2:] == violations


def test_fault_that_asserts_is_a_violation_and_ends_nothing():
    def deploy(crew):
        raise AssertionError("the worker has not ended in 20 s")

    problems: list[Violation] = []
    storm._noting(problems, "deploy", deploy)(None)
    assert [str(problem) for problem in problems] == ["fault deploy: job 0: the worker has not ended in 20 s"]


@pytest.mark.process
@pytest.mark.timeout(400)
def test_short_storm_finds_no_violation(tmp_path):
    """The seed decides which faults come: among the first ones are a restart of the server and a lost host."""
    options = ["--storm", "0.4", "--quick", "--seed", "1164", "--keep", tmp_path / "kept"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.faults", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "storm: 0 violations" in done.stdout, done.stdout
    assert " 0 stuck" in done.stdout, done.stdout
