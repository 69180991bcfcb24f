"""Verdicts of the gates of timing on recorded figures, and runs of the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gates
import ladder_agreement
import peers
import pytest
import turnaround
from gate_verdicts import (
    aa_summary,
    delays_found,
    few_false_positives,
    ladder_agrees,
    peers_are_slower,
    peers_summary,
    slowdowns_of_peers,
    turnaround_is_short,
    turnaround_summary,
)
from slices import DONE, LACKING, MISSED, MORE

from cuagent.measure.timing.self_check import ROWS
from cuagent.task import Device

Row = dict[str, Any]


def timed(standing: str = "inconclusive", contradiction: str = "") -> Row:
    about = {"standing": standing, "contradiction": contradiction, "ratio": 1.0, "busy": 0.1}
    return {"step": "run 0"} | about


def ours(step: str, seconds: float, accepted: bool = True) -> Row:
    about = {"example": step.split()[0], "accepted": accepted}
    return {"step": f"{step} ours", "all": seconds, "timing": 1.0 if accepted else None} | about


def theirs(step: str, seconds: float, ended: bool = True) -> Row:
    example, _, tool = step.split()
    about = {"tool": tool, "example": example, "ended": ended}
    return {"step": step, "seconds": {"all": seconds}} | about


def compared(*off: float) -> Row:
    return {"step": "p.py", "rungs": {str(at): {"off": share} for at, share in enumerate(off)}}


@pytest.mark.parametrize(
    ("wrong", "holds"),
    [
        ([], True),
        ([timed("faster")] * 3, True),
        ([timed("faster")] * 4, False),
        ([timed("slower"), timed(contradiction="the wall clock"), {"error": "lost"}], True),
        ([{"step": "run 1", "error": "lost"}] * 4, False),
    ],
)
def test_few_false_positives_admits_3_of_300(wrong: list[Row], holds: bool) -> None:
    assert few_false_positives([timed()] * (300 - len(wrong)) + wrong) == holds


def test_aa_summary_has_the_ratio_and_the_load() -> None:
    said = aa_summary([timed()] * 9 + [timed("slower")])
    assert said == "1 of 10 called, median ratio 1.0000, 10% of the processors by others"


@pytest.mark.parametrize(("found", "holds"), [(38, True), (37, False)])
def test_delays_found_needs_38_of_40(found: int, holds: bool) -> None:
    missed = [timed("faster"), timed(), {"step": "run 9", "error": "lost"}]
    assert delays_found([timed("slower")] * found + missed[: 40 - found]) == holds


@pytest.mark.parametrize(
    ("rows", "holds"),
    [
        ([compared(0.03, -0.03), compared(0.0)], True),
        ([compared(0.0, -0.031)], False),
        ([compared(0.0), {"step": "q.py", "error": "out of memory"}], False),
        ([compared()], False),
    ],
)
def test_ladder_agrees_within_3_percent(rows: list[Row], holds: bool) -> None:
    assert ladder_agrees(rows) == holds


def test_turnaround_is_short_is_the_median_of_examples_without_refusals() -> None:
    rows = [ours("loss 0", 9.0), ours("loss 2", 7.0), ours("mlp 0", 6.0), ours("mlp 2", 6.0)]
    assert turnaround_is_short(rows)
    assert turnaround_summary(rows) == "median 7.0 s [6.0, 8.0] over 2 examples (8 are allowed)"
    assert not turnaround_is_short([ours("loss 0", 9.0), ours("mlp 0", 8.0)])
    assert not turnaround_is_short([*rows, ours("mlp 4", 0.5, accepted=False)])
    assert "1 not accepted" in turnaround_summary([*rows, ours("mlp 4", 0.5, accepted=False)])
    assert not turnaround_is_short([*rows, {"step": "mlp 4 ours", "error": "lost"}])
    assert turnaround_is_short([*rows, {"step": "mlp 1 CUDA-Agent", "error": "took too long"}])


def test_slowdowns_of_peers_compares_with_our_neighbouring_runs() -> None:
    rows = [
        *[ours("loss 0", 2.0), theirs("loss 1 KernelBench", 30.0), ours("loss 2", 4.0)],
        *[theirs("loss 3 CUDA-Agent", 60.0), ours("loss 4", 2.0)],
        *[
            ours("mlp 0", 1.0),
            theirs("mlp 1 KernelBench", 14.0),
            {"step": "mlp 2 ours", "error": "x"},
        ],
    ]
    assert slowdowns_of_peers(rows) == {"KernelBench": [10.0, 14.0], "CUDA-Agent": [20.0]}
    assert "KernelBench takes 12.0 times as long [10.0, 14.0] in 2 runs" in peers_summary(rows)
    assert peers_are_slower(rows)
    shuffled = [rows[at] for at in (3, 6, 0, 7, 2, 1, 5, 4)]
    assert slowdowns_of_peers(shuffled) == slowdowns_of_peers(rows)
    quick = [theirs(f"mlp {at} CUDA-Agent", 9.0) for at in (3, 5)]
    assert not peers_are_slower([*rows, *quick, ours("mlp 4", 1.0)])


def test_run_that_did_not_end_is_not_counted() -> None:
    rows = [ours("loss 0", 2.0), theirs("loss 1 KernelBench", 1.0, ended=False)]
    assert slowdowns_of_peers(rows) == {}
    assert not peers_are_slower(rows)
    assert "KernelBench on loss came to no end" in peers_summary(rows)


def test_plan_puts_ours_before_and_after_each_other_tool() -> None:
    plan = list(gates._plan(["loss"], ["KernelBench", "CUDA-Agent"], 1))
    assert [step.split()[2] for step in plan] == [
        *["ours", "KernelBench", "ours", "CUDA-Agent", "ours"]
    ]
    assert len(gates._plan(["loss", "mlp"], [], 2)) == 10


@pytest.mark.slow
def test_missing_tool_did_not_end(tmp_path: Path) -> None:
    example, attempt = (folder / "loss" for folder in (turnaround.EXAMPLES, turnaround.ATTEMPTS))
    row = peers.kernelbench(tmp_path, example.with_suffix(".py"), attempt)
    assert row["ended"] is False
    assert "kernelbench" in row["said"]
    assert str(tmp_path) not in row["said"]


PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.rand({size})]
def get_init_inputs():
    return []
"""


def test_selected_problems_are_spread_evenly_and_small(tmp_path: Path) -> None:
    for level in "123":
        folder = tmp_path / f"KernelBench/level{level}"
        folder.mkdir(parents=True)
        for name, size in (("1_a", "8"), ("2_huge", "1 << 30"), ("3_b", "8"), ("4_broken", "'a'")):
            (folder / f"{name}.py").write_text(PROBLEM.format(size=size))
    selected = ladder_agreement.selected(tmp_path, 3)
    names = [f"{path.parent.name}/{path.stem}" for path in selected]
    assert names == ["level1/1_a", "level2/1_a", "level3/3_b"]
    assert len(ladder_agreement.selected(tmp_path, 20)) == 6
    assert ladder_agreement.selected(tmp_path / "KernelBench", 20) == []


# -- the command


def run(out: Path, *words: str) -> int:
    return gates.main(["--device", "cpu", "--out", str(out), *words])


def test_missing_prerequisite_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gates.json"
    assert run(out, "--only", "do_bench,peers,ladder") == LACKING
    told = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in told] == [
        "needs a GPU",
        "needs --kernelbench or --problems",
        "needs a GPU",
    ]


@pytest.mark.parametrize(
    "words", [["--only", "speed"], ["--kernelbench", "nowhere"], ["--minutes", "soon"]]
)
def test_wrong_arguments_are_not_a_missed_gate(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as refused:
        run(tmp_path / "gates.json", *words)
    assert refused.value.code == MORE


@pytest.mark.parametrize("text", ['{"device": "a GPU", "commands": [], "rows": {}}', "{", "[]"])
def test_file_of_another_machine_is_left_unchanged(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gates.json"
    out.write_text(text)
    assert run(out, "--only", "aa") == MORE
    assert out.read_text() == text
    assert "gates.json" in capsys.readouterr().err


@pytest.mark.slow
def test_command_continues_a_file_and_hides_local_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ROWS, Device.CPU, 100)
    out = tmp_path / "gates.json"
    assert run(out, "--only", "aa", "--aa", "1", "--problems", str(tmp_path)) in (DONE, MISSED)
    first = json.loads(out.read_text())
    (row,) = first["rows"]["aa"]
    assert {"step", "ratio", "standing", "busy", "seconds"} <= row.keys()
    assert first["commands"] == [
        "python benchmarks/gates.py --device cpu --out FILE --only aa --aa 1 --problems FOLDER"
    ]
    assert run(out, "--only", "aa", "--aa", "2", "--minutes", "0") == MORE
    assert "1 of 2 are still to do" in capsys.readouterr().out
    assert json.loads(out.read_text())["rows"] == first["rows"]
