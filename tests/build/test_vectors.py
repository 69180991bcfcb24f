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
    assert "a break, or a branch" in branching.reason
    assert "not vectorised" in str(branching)
    report.unlink()
    assert vectorised(attempt, library) == (plain, branching), "a missing report is written again"
    report.write_text(report.read_text().replace("control flow in loop", "a whim"))
    assert "a whim" in vectorised(attempt, library)[1].reason, "a present report is used"


CODE = """
template <int N> void tile(float* y, const float* x, long n) {
  for (long i = 0; i < n; ++i) for (int k = 0; k < N; ++k) y[i] += x[i * N + k];
}
void rows(float* y, const float* x, long rows, long n) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    const float* r = x + i * n;
    for (long j = 0; j < n; ++j) y[i * n + j] = exp(r[j]);
#pragma omp simd
    for (long j = 0; j < n; ++j) y[i * n + j] += r[j] * r[j] + 2 * r[j] + sqrt(r[j]) * (1 + r[j]);
  }
}
"""
REPORT = """\
k.cpp:3:22: missed: couldn't vectorize loop
k.cpp:3:65: missed: not vectorized: complicated access pattern.
k.cpp:3:22: optimized: loop vectorized using 32 byte vectors
k.cpp:8:18: missed: couldn't vectorize loop
k.cpp:8:18: missed: not vectorized: loop nest containing two or more consecutive inner loops
k.cpp:9:24: missed: couldn't vectorize loop
k.cpp:9:55: missed: not vectorized: no vectype for stmt: _86 = *_85;
k.cpp:10:9: optimized: loop vectorized using 32 byte vectors
k.cpp:11:39: optimized: loop vectorized using 32 byte vectors
k.cpp:11:39: optimized: loop vectorized using 16 byte vectors
"""


def test_parse_report_merges_reports_of_one_loop() -> None:
    part, call, simd = parse_report(REPORT, "kernels/k.cpp", CODE)
    assert str(part).startswith("kernels/k.cpp:3: 32-byte vectors in part; the rest is scalar: it ")
    assert (call.line, simd.line) == (9, 11), "outer loops are not reported"
    assert "_86" not in str(call)
    assert "an operation in it has no vector form" in str(call)
    assert str(simd).startswith("kernels/k.cpp:11: 32-byte vectors in `for")


def test_shown_truncates_the_source_text_but_not_the_reason() -> None:
    part, call, simd = parse_report(REPORT, "kernels/k.cpp", CODE)
    assert simd.shown(70).endswith("...`")
    assert len(simd.shown(70)) <= 70
    for loop in (part, call):
        assert loop.shown(20).endswith(loop.reason)


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


def test_a_call_without_a_vector_form_is_named_although_it_stands_in_a_header() -> None:
    report = (
        "k.cpp:3:22: missed: couldn't vectorize loop\n"
        "/usr/include/c++/12/cmath:223:26: missed: statement clobbers memory: "
        "_263 = __builtin_expf (_93);\n"
        "k.cpp:9:24: missed: couldn't vectorize loop\n"
        "k.cpp:9:24: missed: not vectorized: unsupported data-type float\n"
        "k.cpp:8:17: missed: statement clobbers memory: __builtin_GOMP_parallel (f, 0);\n"
    )
    call, total = parse_report(report, "kernels/k.cpp", CODE)
    assert call.reason == "it calls expf, which has no vector form"
    assert "a sum needs" in total.reason
