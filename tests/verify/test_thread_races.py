"""Tests of compiled candidates with races between threads or reads of uninitialised memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from column_sums import attempt_of
from regimes import Regime

from cuagent.build import build
from cuagent.task import load_task
from cuagent.verify import Reason, Referee

pytestmark = pytest.mark.slow

SUM = Regime("torch.randn(512, 700)", "return x.square().sum(0)", "", {})
HEAD = """
#include <cstdlib>
#include <vector>
extern "C" void columns(float* out, const float* x, long rows, long width) {
"""
HONEST = {
    "each column by itself": """
  #pragma omp parallel for
  for (long j = 0; j < width; j++) {
    float sum = 0;
    for (long i = 0; i < rows; i++) sum += x[i * width + j] * x[i * width + j];
    out[j] = sum;
  }
""",
    "atomic": """
  for (long j = 0; j < width; j++) out[j] = 0;
  #pragma omp parallel for
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < width; j++) {
      float square = x[i * width + j] * x[i * width + j];
      #pragma omp atomic
      out[j] += square;
    }
""",
    "cleared": """
  float* sums = (float*)calloc(width, sizeof(float));
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < width; j++) sums[j] += x[i * width + j] * x[i * width + j];
  for (long j = 0; j < width; j++) out[j] = sums[j];
  free(sums);
""",
}
WRONG = {
    "not atomic": """
  for (long j = 0; j < width; j++) out[j] = 0;
  #pragma omp parallel for
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < width; j++) out[j] += x[i * width + j] * x[i * width + j];
""",
    "a buffer that threads share": """
  static float line[4096];
  #pragma omp parallel for
  for (long j = 0; j < width; j++) {
    float sum = 0;
    for (long i = 0; i < rows; i++) line[i] = x[i * width + j];
    for (long i = 0; i < rows; i++) sum += line[i] * line[i];
    out[j] = sum;
  }
""",
    "malloc taken for zero": """
  float* sums = (float*)malloc(width * sizeof(float));
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < width; j++) sums[j] += x[i * width + j] * x[i * width + j];
  for (long j = 0; j < width; j++) out[j] = sums[j];
""",
    "large malloc taken for zero": """
  float* sums = (float*)malloc((64 << 20) + width * sizeof(float));
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < width; j++) sums[j] += x[i * width + j] * x[i * width + j];
  for (long j = 0; j < width; j++) out[j] = sums[j];
  free(sums);
""",
    "aligned memory taken for zero": """
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, width * sizeof(float))) return;
  float* sums = (float*)memory;
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < width; j++) sums[j] += x[i * width + j] * x[i * width + j];
  for (long j = 0; j < width; j++) out[j] = sums[j];
""",
}
UNDISTURBED = """
import threading
import torch
from cuagent.kernels import load

kernel = load("kernels/columns.cpp")


class ModelNew(torch.nn.Module):
    last, undisturbed = None, 0

    def forward(self, x):
        if self.last is None or not torch.equal(x, self.last):
            self.last, self.undisturbed = x.clone(), 0
        self.undisturbed += threading.active_count() == 1
        out = torch.empty(x.shape[1])
        kernel.columns(out, x, x.shape[0], x.shape[1])
        return out + (self.undisturbed > 2)
"""
"""Wrong in the third equal call without the thread that interrupts others."""


def test_calls_are_also_repeated_with_the_usual_threads(
    regime_referee: Callable[[Regime], Referee],
) -> None:
    referee = regime_referee(SUM)
    attempt = attempt_of(HEAD, HONEST["each column by itself"], model=UNDISTURBED)
    verdict = referee.verify(attempt, build(attempt, referee.task.device))
    assert verdict.reason in (Reason.WRONG_VALUES, Reason.NOT_DETERMINISTIC), verdict.detail


@pytest.mark.parametrize("name", [*HONEST, *WRONG])
def test_races_and_uninitialised_memory_are_detected(
    name: str, regime_referee: Callable[[Regime], Referee], monkeypatch: pytest.MonkeyPatch
) -> None:
    referee = regime_referee(SUM)
    attempt = attempt_of(HEAD, (HONEST | WRONG)[name])
    verdict = referee.verify(attempt, build(attempt, referee.task.device))
    assert verdict.accepted is (name in HONEST), verdict.detail


@pytest.mark.parametrize("name", ["atomic", "not atomic"])
def test_threads_of_a_large_task_are_interrupted_too(name: str, tmp_path: Path) -> None:
    """Its calls are not repeated, since that takes copies of the output."""
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        "
        f"{SUM.reference}\ndef get_inputs(): return [torch.randn(1024, 700)]\n"
    )
    attempt = attempt_of(HEAD, (HONEST | WRONG)[name])
    with Referee(load_task(str(path), device="cpu"), call_s=60, budget=15 << 20) as referee:
        assert referee.large
        verdict = referee.verify(attempt, build(attempt, referee.task.device))
    assert verdict.accepted is (name in HONEST), verdict.detail
