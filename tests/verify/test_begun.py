"""What is begun while a compiler runs: none of the attempt's code, and nothing that stays."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from bodies import candidate

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import Task
from cuagent.verify import Reason, Referee

HONEST = "return self.honest(x)"


def marking(file: str) -> Attempt:
    """An honest attempt that leaves a file in its folder when it is imported."""
    (name, text), *others = candidate(HONEST).files
    return Attempt(((name, f"open({file!r}, 'w').close()\n{text}"), *others))


def test_no_code_of_an_attempt_runs_before_its_libraries_are_there(referee: Referee) -> None:
    begun = referee.begin(marking("imported"))
    assert begun.session is not None
    folder = begun.session.folder
    time.sleep(0.2)
    assert begun.seeds.drawn
    assert not (folder / "imported").exists()
    begun.session.import_model()
    assert (folder / "imported").exists()
    begun.close()


def test_what_does_not_compile_leaves_no_process(task: Task, referee: Referee) -> None:
    living = set(referee.nursery.living)
    broken = Attempt((*candidate(HONEST).files, ("kernels/no.cpp", "int main( {")))
    begun = referee.begin(broken)
    assert len(referee.nursery.living) == len(living) + 1
    verdict = referee.complete(begun, build(broken, task.device))
    assert verdict.reason is Reason.BUILD_FAILED
    assert referee.nursery.living == living


def test_a_build_of_another_source_is_no_build_of_what_was_frozen(
    task: Task, referee: Referee
) -> None:
    living = set(referee.nursery.living)
    attempt = candidate(HONEST)
    other = replace(build(attempt, task.device), attempt=candidate("return x").digest)
    with pytest.raises(ValueError, match="another attempt"):
        referee.complete(referee.begin(attempt), other)
    assert referee.nursery.living == living
