"""The compiler's report on loops: which it vectorised, and why not the others."""

from __future__ import annotations

from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.build.vectors import parse_report, vectorised
from cuagent.task import Device

SOURCE = """
extern "C" void act(float* x, long n) {
  for (long i = 0; i < n; ++i) x[i] = x[i] > 0 ? x[i] : 0;
}
extern "C" void first(float* y, const float* x, const int* at, long n) {
  float top = 0;
  for (long j = 0; j < n; ++j) { if (x[at[j]] > 1) break; top += x[at[j]]; }
  *y = top;
}
"""


def test_vectorised_and_scalar_loops_are_reported(tmp_path: Path) -> None:
    attempt = Attempt((("kernels/act.cpp", SOURCE), ("model_new.py", "")))
    (library,) = build(attempt, Device.CPU, cache=tmp_path).libraries
    report = library.path.with_suffix(".vectors")
    assert report.is_file(), "the build writes the report"
    plain, branching = vectorised(attempt, library)
    assert (plain.source, plain.line) == ("kernels/act.cpp", 3)
    assert plain.vector_bytes >= 16
    assert not plain.reason
    assert (branching.line, branching.vector_bytes) == (7, 0)
    assert "control flow" in branching.reason
    assert "not vectorised" in str(branching)
    report.unlink()
    assert vectorised(attempt, library) == (plain, branching), "a missing report is written again"
    report.write_text(report.read_text().replace("control flow", "a whim"))
    assert "a whim" in vectorised(attempt, library)[1].reason, "a present report is used"


def test_parse_report_ignores_other_files_and_missing_lines() -> None:
    text = (
        "/usr/include/math.h:3:1: optimized: loop vectorized using 32 byte vectors\n"
        "kernels/act.cpp:99:1: optimized: loop vectorized using 32 byte vectors\n"
        "kernels/act.cpp:3:1: optimized: loop vectorized using 16 byte vectors\n"
        "kernels/act.cpp:3:1: optimized: loop vectorized using 32 byte vectors\n"
        "no report at all\n"
    )
    (loop,) = parse_report(text, "kernels/act.cpp", SOURCE)
    assert (loop.line, loop.vector_bytes) == (3, 32)
