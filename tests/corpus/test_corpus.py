"""Judge exploits, honest candidates and seeded bugs with cuagent's own judge.

This module runs a sample that takes minutes: every exploit that needs no timing, and a share of all
others. With `--share K/N` the share is N times smaller, and another one for each K, so that a
sequence of CI runs takes every candidate. `python benchmarks/corpus.py` runs all of them at once. A
known fault of the judge is an expected failure with its reason, and passes when the fault is fixed.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from math import lcm
from typing import Any

import pytest
from corpus import ACCEPTED, HERE, Candidate, bugs, everything, exploits, honest, with_default_cuda
from judging import CorpusJudges, is_safe, open_judges, outcome_of

from cuagent.arms import EAGER

pytestmark = [pytest.mark.slow, pytest.mark.always]

STRIDES = {"timed": 4, "honest": 3, "bug": 20, "equivalent": 2}
"""One in this many candidates of each kind is in the sample; of other kinds, all are."""


def _kind(candidate: Candidate) -> str:
    if candidate.timed:
        return "timed"
    if candidate.device == "cuda":
        return "on a GPU"
    equivalent = candidate.kind == "bug" and candidate.expect == (ACCEPTED,)
    return "equivalent" if equivalent else candidate.kind


def sample(first: int, share: int) -> list[Candidate]:
    """Choose candidates; they are counted over all tasks, so that the share is exact."""
    chosen, seen = [], dict.fromkeys(STRIDES, 0)
    for candidate in everything():
        kind = _kind(candidate)
        if kind in STRIDES:
            seen[kind] += 1
            if (seen[kind] - 1 - first) % (STRIDES[kind] * share):
                continue
        chosen.append(candidate)
    return chosen


def _parameter(candidate: Candidate) -> Any:
    gpu_marks = [pytest.mark.gpu] if candidate.device == "cuda" else []
    return pytest.param(candidate, id=f"{candidate.kind}-{candidate.name}", marks=gpu_marks)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "candidate" in metafunc.fixturenames:
        first, share = map(int, metafunc.config.getoption("--share").split("/"))
        metafunc.parametrize("candidate", [_parameter(c) for c in sample(first, share)])


@pytest.fixture(scope="module")
def opened() -> Iterator[CorpusJudges]:
    with open_judges((EAGER,)) as opened:
        yield opened


def test_candidate_gets_the_expected_outcome(
    opened: CorpusJudges, candidate: Candidate, python: list[str]
) -> None:
    if not is_safe(candidate):
        pytest.skip(f"no sandbox on this machine for a harmful candidate: {candidate.harm}")
    outcome = outcome_of(opened, candidate, python)
    if not outcome.right and candidate.open:
        pytest.xfail(candidate.open)
    assert outcome.right, f"{candidate.what} {outcome.word}: {outcome.detail}"


def test_shares_have_each_candidate_equally_often() -> None:
    shares = lcm(*STRIDES.values()) * 2
    times = Counter(id(c) for first in range(shares) for c in sample(first, 2))
    for candidate in everything():
        expected = shares // (2 * stride) if (stride := STRIDES.get(_kind(candidate))) else shares
        assert times[id(candidate)] == expected, candidate.name


def test_corpora_have_the_promised_sizes() -> None:
    assert len(exploits()) >= 70
    assert len(honest()) >= 200
    assert len({candidate.task for candidate in honest()}) >= 120
    assert sum(bug.expect != (ACCEPTED,) for bug in bugs()) >= 500


def test_each_class_of_mistakes_has_bugs() -> None:
    """docs/research/corpus.md names the classes."""
    topics = Counter(bug.topic for bug in bugs() if bug.expect != (ACCEPTED,))
    text = (HERE.parents[1] / "docs" / "research" / "corpus.md").read_text()
    assert "" not in topics
    assert all(f"| {topic} |" in text for topic in topics)
    assert all(count >= 2 for count in topics.values())


def test_moved_candidate_can_make_its_tensors_on_the_gpu() -> None:
    for candidate in (*exploits(), *honest()):
        moved = dict(with_default_cuda(candidate).attempt.files)["model_new.py"]
        tree = ast.parse(moved)
        assert ast.get_docstring(tree), candidate.name
        compile(tree, candidate.name, "exec")
        added = [node for node in tree.body if "set_default_device" in ast.unparse(node)]
        assert len(added) == 1, candidate.name


def test_candidates_are_distinct() -> None:
    for kind in (exploits(), honest(), bugs()):
        assert len({(c.task, c.device, c.timed, c.attempt.digest) for c in kind}) == len(kind)


def test_every_row_of_the_catalogue_has_exploit_or_reason() -> None:
    """docs/research/corpus.md gives the reason for each row without an exploit."""
    text = (HERE.parents[1] / "docs" / "research" / "corpus.md").read_text()
    rows = re.findall(r"^\| (\d[\d, ]*) \|", text, re.MULTILINE)
    with_reason = {number for row in rows for number in row.split(", ")}
    assert {str(number) for number in range(1, 73)} <= with_reason | {c.row for c in exploits()}
