"""A measurement in steps continues after any interruption, and a failed step ends no other."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
from slices import (
    DONE,
    LACKING,
    MISSED,
    MORE,
    Part,
    Row,
    Rows,
    forget_failed,
    print_conclusion,
    read,
    run_missing_steps,
    write,
)

SOON, NEVER = 60.0, -1.0
NOTHING: Row = {"device": "", "commands": [], "rows": {}}


class Killed(BaseException):
    """Like a signal: nothing between the step and the end of the process catches it."""


def part(name: str, steps: list[str], at: Callable[[str], object] = str, **more: object) -> Part:
    """Return a part that measures one row for each step, with the value `at(step)`."""

    def take(missing: list[str]) -> Rows:
        for step in missing:
            yield {"value": at(step)}

    given: dict[str, object] = {
        "summarize": lambda rows: f"{len(rows)} rows",
        "is_passed": lambda rows: True,
    }
    return Part(name, steps, take, **(given | more))  # type: ignore[arg-type]


def called(part: Part, out: Path, seconds: float = SOON) -> Row:
    """Run the missing steps of a part for `seconds`; return the content of the results file."""
    found = read(out) or deepcopy(NOTHING)
    run_missing_steps([part], found, out, time.monotonic() + seconds)
    return read(out) or NOTHING


def steps(found: Row, name: str = "one") -> list[str]:
    return [row["step"] for row in found["rows"].get(name, [])]


def test_who_is_killed_loses_the_step_that_was_under_way_and_the_next_call_takes_the_rest(
    tmp_path: Path,
) -> None:
    out, taken = tmp_path / "rows.json", []

    def at(step: str) -> str:
        taken.append(step)
        if step == "c 3" and taken.count(step) == 1:
            raise Killed
        return step

    with pytest.raises(Killed):
        called(part("one", ["a 1", "b 2", "c 3", "d 4"], at), out)
    assert steps(read(out) or {}) == ["a 1", "b 2"]
    assert (
        steps(called(part("one", ["a 1", "b 2", "c 3", "d 4"], at), out)) == taken[:2] + taken[3:]
    )
    assert taken == ["a 1", "b 2", "c 3", "c 3", "d 4"]


def test_the_file_stays_whole_where_writing_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.json"
    write(out, NOTHING | {"rows": {"one": [{"step": "a"}]}})

    def half(path: Path, text: str) -> None:
        path.write_bytes(text[: len(text) // 2].encode())
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(Killed):
            write(out, NOTHING | {"rows": {"one": [{"step": "a"}, {"step": "b"}]}})
    assert steps(read(out) or {}) == ["a"]


def test_nothing_is_begun_after_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.json"
    assert steps(called(part("one", ["a", "b"]), out, NEVER)) == []
    now = [0.0]
    monkeypatch.setattr("slices.time", SimpleNamespace(monotonic=lambda: now[0]))
    slow = part("one", ["a", "b"], lambda step: now.append(now.pop() + 5.0))
    run_missing_steps([slow], deepcopy(NOTHING), out, 2.0)
    assert steps(read(out) or NOTHING) == ["a"]


def test_a_step_that_raises_is_recorded_with_what_it_said_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    out = tmp_path / "rows.json"

    def at(step: str) -> str:
        if step == "b":
            raise ValueError("no such kernel")
        return step

    found = deepcopy(NOTHING)
    parts = [part("one", ["a", "b", "c"], at), part("two", ["d"])]
    run_missing_steps(parts, found, out, time.monotonic() + SOON)
    assert (steps(found), steps(found, "two")) == (["a", "b", "c"], ["d"])
    row = found["rows"]["one"][1]
    assert row["error"] == "ValueError: no such kernel"
    assert "in at" in row["traceback"]
    assert [row["step"] for row in parts[0].rows(read(out) or {})] == ["a", "b", "c"]


def test_after_three_failures_in_a_row_what_hangs_together_is_left_and_the_rest_is_not(
    tmp_path: Path,
) -> None:
    out = tmp_path / "rows.json"
    names = [f"loss {n}" for n in range(5)] + ["mlp 0"]

    def at(step: str) -> str:
        if step.startswith("loss"):
            raise RuntimeError("the device is lost")
        return step

    found = called(part("one", names, at), out)
    assert steps(found) == ["loss 0", "loss 1", "loss 2", "mlp 0"]
    assert print_conclusion([part("one", names, at)], found) == MORE
    forget_failed(found)
    assert steps(found) == ["mlp 0"]
    write(out, found)
    assert sorted(steps(called(part("one", names), out))) == sorted(names)


def test_rows_that_tell_an_error_themselves_count_as_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"

    def take(missing: list[str]) -> Rows:
        for _ in missing:
            yield {"error": "out of memory"}

    failing = Part("one", ["a 1", "a 2", "a 3", "a 4"], take, str, lambda rows: True)
    found = called(failing, out)
    assert len(steps(found)) == 3
    print_conclusion([failing], found)
    assert "nothing yet; 3 failed; 1 of 4 are still to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([part("one", ["a"])], DONE),
        ([part("one", ["a"], is_passed=lambda rows: False)], MISSED),
        ([part("one", ["a", "b"])], MORE),
        ([part("none", [])], MORE),
        ([part("one", ["a"]), part("two", ["a"], requirement="a GPU")], LACKING),
        (
            [
                part("one", ["a"], is_passed=lambda rows: False),
                part("two", [], requirement="a GPU"),
            ],
            MISSED,
        ),
        ([part("one", ["a", "b"]), part("one", ["a"], is_passed=lambda rows: False)], MORE),
        ([part("reads", [], rows_of="one", is_passed=lambda rows: len(rows) != 1)], MISSED),
    ],
)
def test_the_exit_code_tells_the_most_urgent(parts: list[Part], code: int) -> None:
    assert print_conclusion(parts, {"rows": {"one": [{"step": "a"}]}}) == code
