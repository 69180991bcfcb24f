"""Tests of the check for data races that compiled candidates get before a claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import column_sums
import pytest
from regimes import Regime

from cuagent.build import build
from cuagent.build.races import may_use_threads
from cuagent.verdict import Verdict
from cuagent.verify import Reason, Referee
from cuagent.verify.races import gated

pytestmark = pytest.mark.slow

SUM = Regime("torch.randn(512, 70)", "return x.square().sum(0)", "", {})
HEAD = """
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>
#include <vector>
extern "C" void columns(float* out, const float* x, long rows, long width) {
  auto square = [&](long i, long j) { return x[i * width + j] * x[i * width + j]; };
"""
EACH = """
  #pragma omp parallel for
  for (long j = 0; j < width; j++) {
    float sum = 0;
    for (long i = 0; i < rows; i++) sum += square(i, j);
    out[j] = sum;
  }
"""
PRIVATE = """
  for (long j = 0; j < width; j++) out[j] = 0;
  #pragma omp parallel
  {
    std::vector<float> own(width, 0.0f);
    #pragma omp for
    for (long i = 0; i < rows; i++)
      for (long j = 0; j < width; j++) own[j] += square(i, j);
    #pragma omp critical
    for (long j = 0; j < width; j++) out[j] += own[j];
  }
"""
ATOMIC = """
  for (long j = 0; j < width; j++) out[j] = 0;
  #pragma omp parallel for
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < width; j++) {
      #pragma omp atomic
      out[j] += square(i, j);
    }
"""
LARGEST = """
  float largest = 0;
  #pragma omp parallel for
  for (long i = 0; i < rows; i++)
    if (x[i] > largest) {
      #pragma omp critical
      if (x[i] > largest) largest = x[i];
    }
"""
MUTEX = """
  static std::mutex lock;
  for (long j = 0; j < width; j++) out[j] = 0;
  auto add = [&](long first, long last) {
    std::vector<float> own(width, 0.0f);
    for (long i = first; i < last; i++)
      for (long j = 0; j < width; j++) own[j] += square(i, j);
    std::lock_guard<std::mutex> held(lock);
    for (long j = 0; j < width; j++) out[j] += own[j];
  };
  std::thread half(add, 0, rows / 2);
  add(rows / 2, rows);
  half.join();
"""
SPIN = """
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
  for (long j = 0; j < width; j++) out[j] = 0;
  #pragma omp parallel for
  for (long i = 0; i < rows; i++) {
    while (busy.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    for (long j = 0; j < width; j++) out[j] += square(i, j);
    busy.clear(std::memory_order_release);
  }
"""
FLAG = """
  static int seen;
  #pragma omp parallel for
  for (long i = 0; i < rows; i++) seen = 1;
"""
COUNT = """
  static long count;
  #pragma omp parallel for
  for (long i = 0; i < rows * width; i++) count++;
"""
SCRATCH = """
  static float line[4096];
  #pragma omp parallel for
  for (long j = 0; j < width; j++) {
    float sum = 0;
    for (long i = 0; i < rows; i++) line[i] = square(i, j);
    for (long i = 0; i < rows; i++) sum += line[i];
    out[j] = sum;
  }
"""
HONEST = {
    "each column by itself": EACH,
    "joined under a lock": PRIVATE,
    "atomic": ATOMIC,
    "maximum that is compared before its lock": LARGEST + EACH,
    "mutex between threads of C++": MUTEX,
    "spinning lock of an atomic flag": SPIN,
    "flag that all threads set": FLAG + EACH,
    "reduction": EACH
    + """
  float total = 0;
  #pragma omp parallel for reduction(+ : total)
  for (long i = 0; i < rows; i++) total += x[i];
""",
}
WRONG = {
    "joined without a lock": PRIVATE.replace("#pragma omp critical", ""),
    "not atomic": ATOMIC.replace("#pragma omp atomic", ""),
    "counter of all threads": COUNT + EACH,
    "threads of C++ without a mutex": MUTEX.replace(
        "own[j] += square(i, j)", "out[j] += square(i, j)"
    ),
    "buffer that threads share": SCRATCH,
}
attempt_of = partial(column_sums.attempt_of, HEAD)


@pytest.fixture(scope="module")
def accepted(regime_referee: Callable[[Regime], Referee]) -> tuple[Referee, Verdict]:
    """Return the referee of `SUM` and a verdict that accepts."""
    referee, attempt = regime_referee(SUM), attempt_of(EACH)
    verdict = referee.verify(attempt, build(attempt, referee.task.device))
    assert verdict.accepted, verdict.detail
    return referee, replace(verdict, notes=())


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_synchronised_threads_are_accepted_without_a_note(
    name: str, accepted: tuple[Referee, Verdict]
) -> None:
    referee, verdict = accepted
    assert gated(referee, attempt_of(HONEST[name]), verdict) == verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_unsynchronised_writes_are_rejected_at_every_check(
    name: str, accepted: tuple[Referee, Verdict]
) -> None:
    referee, verdict = accepted
    for _ in range(3):
        found = gated(referee, attempt_of(WRONG[name]), verdict)
        assert not found.accepted
        assert found.reason is Reason.MEMORY_FAULT
        assert "data race in kernels/columns.cpp" in found.detail


def test_check_that_fails_is_a_note(accepted: tuple[Referee, Verdict]) -> None:
    referee, verdict = accepted
    crash = "if (__SANITIZE_THREAD__) __builtin_trap();"
    text = f"#ifdef __SANITIZE_THREAD__\n{crash}\n#endif\n#pragma omp parallel\n;"
    found = gated(referee, attempt_of(text + EACH), verdict)
    assert found.accepted
    assert found.notes[0].startswith("data races were not looked for: ")
    broken = "#ifdef __SANITIZE_THREAD__\n#error no\n#endif\n#pragma omp parallel\n;"
    assert "does not compile" in gated(referee, attempt_of(broken + EACH), verdict).notes[0]


def test_source_may_use_names_of_the_system(accepted: tuple[Referee, Verdict]) -> None:
    referee, verdict = accepted
    more = 'extern "C" void wait(float* read) { *read = 1; }\nstatic int settle, sampled, own;\n'
    assert gated(referee, attempt_of(EACH, more), verdict) == verdict


def test_source_without_threads_is_not_checked() -> None:
    serial = EACH.replace("#pragma omp parallel for", "").replace("<thread>", "<vector>")
    text = HEAD.replace("#include <thread>\n", "") + serial
    assert not may_use_threads(column_sums.attempt_of("", text))
    assert may_use_threads(attempt_of(EACH))
