"""First choices of the search, which follow from the profile and the best rung."""

from __future__ import annotations

from dataclasses import replace

import pytest
from modules import LAYER_TASK  # type: ignore[import-not-found]

from cuagent.expert.candidate import make_candidate
from cuagent.expert.capture.subject import Subject, Target, open_subject
from cuagent.expert.options import Options
from cuagent.expert.search.choices import candidate_of
from cuagent.expert.search.outcomes import Bounds, Outcome
from cuagent.expert.search.planner import propose
from cuagent.expert.search.progress import runs_in_tf32
from cuagent.expert.search.repairs import shares_fault
from cuagent.task import load_task
from cuagent.timing import Ratio

pytestmark = pytest.mark.slow

NO_BOUNDS = Bounds()
HOPPER = Target("cuda", (9, 0), 132, tf32_convolutions=True)


def subject_of(path, layer: str, shape: str, body: str = "F.relu(self.c(x)) * 2") -> Subject:
    task = path / "task.py"
    task.write_text(LAYER_TASK.format(layer=layer, body=body, shape=shape))
    return replace(open_subject(load_task(f"{task}:Model")), target=HOPPER)


def profile_of(*names: str, calls: float = 1.0) -> dict[str, list[dict[str, object]]]:
    return {"kernels": [{"name": name, "seconds": 1.0, "calls": calls} for name in names]}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw", "relu"], True),
        (["void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32>"], True),
        (["cutlass_tensorop_s1688dgrad_optimized_tf32", "cudnn::ops::nchwToNhwcKernel"], True),
        (["void implicit_convolve_sgemm<float, float, 1024>", "x_tf32_fprop_gemm"], False),
        (["sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw"], False),
        (["vectorized_elementwise_kernel", "void cudnn::ops::convertTensor_kernel"], False),
        (
            [
                "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
                "void cask_plugin::xmma::init_device_workspace_kernel<xmma::implicit_gemm::fprop>",
                "void at::native::conv_depthwise2d_forward_kernel<5, float, int>",
            ],
            True,
        ),
        (["sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_g1_ffma_aligna4"], False),
        (["void implicit_convolveNd_sgemm<float, 3, 1024, 5, 5, 3, 3>(int, int)"], False),
        ([], False),
    ],
)
def test_arithmetic_of_the_reference_is_read_from_its_kernels(names, expected):
    assert runs_in_tf32(profile_of(*names)) is expected
    assert runs_in_tf32(None) is False


def test_quick_layers_of_a_network_stay_in_float32():
    """TF32 could gain little there, and a network's error does not show it."""
    kernels = profile_of("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64", calls=50)
    exact = profile_of("void implicit_convolve_sgemm<float, float, 1024>")["kernels"]
    kernels["kernels"] += exact
    exact[0]["seconds"] = 0.2
    assert runs_in_tf32(kernels)
    exact[0]["seconds"] = 0.1
    assert not runs_in_tf32(kernels)


@pytest.mark.parametrize(
    ("in_tf32", "others", "expected"), [(8, 8, True), (8, 9, False), (3, 1, False), (3, 0, True)]
)
def test_few_layers_of_a_network_may_be_more_exact(in_tf32, others, expected):
    kernels = profile_of("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64", calls=in_tf32)
    if others:
        other = profile_of("sm80_xmma_fprop_implicit_gemm_indexed_f32f32_f32f32", calls=others)
        kernels["kernels"] += other["kernels"]
    assert runs_in_tf32(kernels) is expected


def test_refused_network_first_computes_few_channels_in_float32(tmp_path):
    layers = "nn.Conv2d(3, 48, 7, 2), nn.Conv2d(48, 48, 3)"
    subject = subject_of(tmp_path, f"nn.Sequential({layers})", "8, 3, 96, 96", "self.c(x)")
    first = propose(subject, [], Bounds(in_tf32=True)).candidate
    assert first.options.tf32_few_channels
    refused = [Outcome(first, False, "less precise than allowed", 1)]
    second = propose(subject, refused, Bounds(in_tf32=True)).candidate.options
    assert not second.tf32_few_channels
    assert not second.exact_convolutions


def test_fault_of_convolutions_is_shared_by_candidates_with_the_same_ones(tmp_path):
    layers = "nn.Conv2d(3, 48, 7, 2), nn.Conv2d(48, 48, 3)"
    subject = subject_of(tmp_path, f"nn.Sequential({layers})", "8, 3, 96, 96", "self.c(x)")
    few = Options(tf32_few_channels=True)
    refused, tiles, careful = (
        candidate_of(subject, options) for options in (few, replace(few, tiles=1), Options())
    )
    assert shares_fault(tiles, refused, "wrong while timed")
    assert not shares_fault(careful, refused, "wrong while timed")
    assert not shares_fault(tiles, refused, "crashed")
    chosen = propose(subject, [Outcome(refused, False, "wrong while timed", 1)]).candidate
    assert chosen.options == replace(few, tf32_few_channels=False)


def test_few_channels_run_in_tf32_where_the_reference_does(tmp_path):
    subject = subject_of(tmp_path, "nn.Conv2d(8, 48, 3)", "8, 8, 64, 64")
    careful, as_reference = (
        propose(subject, [], Bounds(in_tf32=known)).candidate.files["model_new.py"]
        for known in (False, True)
    )
    assert '"tf32x3"' in careful
    assert '"tf32"' in as_reference


def tried(subject: Subject, speed: float, bounds: Bounds = NO_BOUNDS) -> list[Options]:
    """Return the options that the expert tries, if each candidate has the speedup `speed` over
    torch.compile."""
    outcomes: list[Outcome] = []
    ratios = {"compile": Ratio(speed, speed * 0.99, speed * 1.01)}
    while (proposal := propose(subject, outcomes, bounds)) is not None:
        outcomes.append(Outcome(proposal.candidate, True, "accepted", 1, ratios))
    return [outcome.candidate.options for outcome in outcomes]


def test_tf32_is_tried_next_where_the_profile_does_not_tell(tmp_path):
    subject = subject_of(tmp_path, "nn.Conv2d(8, 48, 3)", "8, 8, 64, 64")
    first, second, *_ = tried(subject, speed=0.9)
    assert not first.tf32_few_channels
    assert second.tf32_few_channels


def test_clear_gain_needs_no_tf32(tmp_path):
    subject = subject_of(tmp_path, "nn.Conv2d(8, 48, 3)", "8, 8, 64, 64")
    assert not any(options.tf32_few_channels for options in tried(subject, speed=2.0))


TRANSPOSED = "nn.ConvTranspose3d(32, 64, 5, 2, 2)"
TRANSPOSED_BODY = "F.max_pool3d(F.max_pool3d(self.c(x), 2), 3).sum(1, keepdim=True)"


@pytest.mark.parametrize(
    ("bounds", "precision"), [(Bounds(is_exact=True), '"tf32x3"'), (Bounds(), '"tf32"')]
)
def test_convolution_is_as_exact_as_the_reference_from_the_first_candidate(
    tmp_path, bounds, precision
):
    subject = subject_of(tmp_path, TRANSPOSED, "2, 32, 16, 16, 16", TRANSPOSED_BODY)
    files = propose(subject, [], bounds).candidate.files
    other = {'"tf32"', '"tf32x3"'} - {precision}
    assert precision in files["model_new.py"]
    assert not any(text in files["model_new.py"] for text in other)


def test_refused_tf32_is_not_tried_again(tmp_path):
    subject = subject_of(tmp_path, TRANSPOSED, "2, 32, 16, 16, 16", TRANSPOSED_BODY)
    outcomes = [Outcome(propose(subject, []).candidate, False, "less precise than allowed", 1)]
    ratios = {"compile": Ratio(0.9, 0.89, 0.91)}
    options = []
    while (proposal := propose(subject, outcomes)) is not None:
        options.append(proposal.candidate.options)
        outcomes.append(Outcome(proposal.candidate, True, "accepted", 1, ratios))
    assert options
    assert all(o.exact_convolutions for o in options)


def test_error_of_a_network_does_not_tell_the_precision_of_its_convolutions(tmp_path):
    layers = ", ".join(["nn.Conv2d(8, 8, 3), nn.ReLU()"] * 4)
    subject = subject_of(tmp_path, f"nn.Sequential({layers})", "8, 8, 64, 64", "self.c(x)")
    first = propose(subject, [], Bounds(is_exact=True)).candidate
    assert not first.options.exact_convolutions


def test_long_sum_of_few_channels_is_a_kernel_where_the_reference_runs_in_tf32(tmp_path):
    subject = subject_of(tmp_path, "nn.Conv2d(3, 96, 11, 4, 2)", "16, 3, 128, 128", "self.c(x)")
    candidate = propose(subject, [], Bounds(in_tf32=True)).candidate
    assert (candidate.options.convolutions, candidate.library_convolutions) == ("own", 0)
    assert "128, 128, 32, num_warps=8" in candidate.files["model_new.py"]


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float32", ["network", "library"]), ("bfloat16", ["every", "library"])]
)
def test_network_in_half_precision_is_tried_with_own_kernels_for_all(tmp_path, dtype, expected):
    layers = ", ".join(["nn.Conv2d(36, 36, 3, padding=1), nn.ReLU()"] * 4)
    layer = f"nn.Sequential({layers}).to(torch.{dtype})"
    subject = subject_of(tmp_path, layer, "8, 36, 32, 32", f"self.c(x.to(torch.{dtype}))")
    found = list(dict.fromkeys(options.convolutions for options in tried(subject, speed=1.0)))
    assert found == ["own", *expected]


def test_network_of_own_kernels_is_tried_in_the_library(tmp_path):
    layers = ", ".join(["nn.Conv2d(64, 64, 1), nn.ReLU()"] * 4)
    subject = subject_of(tmp_path, f"nn.Sequential({layers})", "32, 64, 64, 64", "self.c(x)")
    found = list(dict.fromkeys(options.convolutions for options in tried(subject, speed=1.0)))
    assert found == ["own", "network", "library"]


def test_convolution_with_a_long_sum_of_few_channels_is_tried_last(tmp_path):
    subject = subject_of(tmp_path, "nn.Conv2d(3, 96, 11, 4, 2)", "16, 3, 128, 128", "self.c(x)")
    found = [options.convolutions for options in tried(subject, speed=0.9)]
    assert found[0] == "channels_last"
    assert "every" in found


@pytest.mark.parametrize(
    ("shape", "own"), [("2, 256, 7, 7", False), ("32, 256, 28, 28", True)], ids=["few", "many"]
)
def test_long_sums_of_few_tiles_stay_with_the_library(tmp_path, shape, own):
    subject = subject_of(tmp_path, "nn.Conv2d(256, 256, 3, padding=1)", shape)
    module = propose(subject, []).candidate.files["model_new.py"]
    assert ("F.conv2d(" in module.rpartition("def forward")[2]) is not own


NORMS = f"nn.Sequential({', '.join(['nn.Linear(32, 32), nn.LayerNorm(32)'] * 2)})"


@pytest.mark.parametrize(
    ("rung", "seconds", "graph"),
    [
        ("compile", 5e-6, True),
        ("compile", 1e-4, False),
        ("compile+cuda_graph", 1e-4, True),
        ("compile+cuda_graph", 1e-3, False),
        ("compile", float("inf"), False),
    ],
)
def test_many_short_calls_are_captured_into_a_graph_at_once(tmp_path, rung, seconds, graph):
    subject = subject_of(tmp_path, NORMS, "64, 32", "self.c(x)")
    assert propose(subject, [], Bounds(rung, seconds)).candidate.options.graph is graph


@pytest.mark.parametrize(("seconds", "graph"), [(1e-4, True), (1e-2, False)])
def test_launches_that_take_much_of_the_time_are_captured_next(tmp_path, seconds, graph):
    subject = subject_of(tmp_path, NORMS, "64, 32", "self.c(x)")
    first = propose(subject, []).candidate
    ratios = {"compile": Ratio(2.0, 1.98, 2.02)}
    outcome = Outcome(first, True, "accepted", 1, ratios, seconds=seconds)
    assert first.launches >= 4
    assert propose(subject, [outcome]).candidate.options.graph is graph


@pytest.mark.parametrize(("shape", "graph"), [("64, 32", True), ("1048576, 32", False)])
def test_large_arguments_are_not_copied_for_a_graph(tmp_path, shape, graph):
    subject = subject_of(tmp_path, NORMS, shape, "self.c(x)")
    first = propose(subject, []).candidate
    rows = int(shape.partition(",")[0])
    assert first.copied_bytes == 2 * rows * 32 * 4
    outcome = Outcome(first, True, "accepted", 1, {"compile": Ratio(2.0, 1.98, 2.02)}, seconds=1e-4)
    proposal = propose(subject, [outcome])
    assert proposal.candidate.options.graph is graph


GATE = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear({depth}, {width}, bias=False).bfloat16() for _ in range(2))
    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x)
def get_inputs(): return [torch.zeros(4096, {depth}).bfloat16()]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize(("depth", "width", "tried"), [(1024, 3072, True), (512, 1024, False)])
def test_product_with_a_doubtful_epilogue_is_tried_as_one_of_the_library(
    tmp_path, depth, width, tried
):
    task = tmp_path / "task.py"
    task.write_text(GATE.format(depth=depth, width=width))
    subject = replace(open_subject(load_task(f"{task}:Model", device="cpu")), target=HOPPER)
    outcomes: list[Outcome] = []
    ratios = {"eager": Ratio(0.9, 0.89, 0.91)}
    for _ in range(4):
        made = propose(subject, outcomes)
        if made is not None:
            outcomes.append(Outcome(made.candidate, True, "accepted", 1, ratios, seconds=1.0))
    names = [outcome.candidate.kernels for outcome in outcomes]
    assert names[0][0].startswith("linear")
    others = [found for found in names[1:] if found and found[0].startswith("silu")]
    assert bool(others) is tried


@pytest.mark.parametrize(
    ("rung", "mode", "graph"),
    [
        ("compile", "default", False),
        ("compile+cuda_graph", "default", True),
        ("reduce-overhead", "default", True),
        ("max-autotune", "max-autotune-no-cudagraphs", True),
        ("max-autotune-no-cudagraphs", "max-autotune-no-cudagraphs", False),
    ],
)
def test_remainder_is_compiled_and_captured_as_in_the_best_rung(tmp_path, rung, mode, graph):
    subject = subject_of(tmp_path, NORMS, "64, 32", "self.c(x)")
    bounds = Bounds(rung, 1e-2)
    outcomes: list[Outcome] = []
    ratios = {"compile": Ratio(0.9, 0.89, 0.91)}
    while (proposal := propose(subject, outcomes, bounds)) is not None:
        if proposal.candidate.options.compile:
            break
        outcomes.append(Outcome(proposal.candidate, True, "accepted", 1, ratios))
    assert proposal is not None
    assert (proposal.candidate.options.compile, proposal.candidate.options.graph) == (mode, graph)


def test_exception_of_a_compiled_candidate_leads_to_the_same_kernels_without_compiler(tmp_path):
    subject = subject_of(tmp_path, NORMS, "64, 32", "self.c(x)")
    first = propose(subject, []).candidate
    for options, expected in (
        (replace(first.options, compile="default"), first.options),
        (replace(first.options, compile="default", graph=True), replace(first.options, graph=True)),
        (replace(first.options, graph=True), first.options),
    ):
        failed = Outcome(make_candidate(subject, options), False, "raised an exception", 1)
        assert propose(subject, [failed]).candidate.options == expected


LAYER = "nn.GRU(512, 1024, 2, batch_first=True)"


def test_steps_of_a_layer_of_torch_are_captured_into_a_graph(tmp_path):
    """torch launches kernels in each step of a layer whose weights fit into no cluster."""
    body = "(self.c(x)[0] * 2).softmax(-1)"
    subject = subject_of(tmp_path, LAYER, "8, 64, 512", body)
    first = propose(subject, [], Bounds("compile+cuda_graph", 6e-4)).candidate
    assert first.library_layers
    assert first.launches >= 2 * 64
    assert first.options.graph


def test_layers_of_torch_are_not_compiled(tmp_path):
    """torch.compile would unroll their steps, and compile for minutes."""
    body = "(self.c(x)[0] * 2).softmax(-1)"
    subject = subject_of(tmp_path, LAYER, "8, 64, 512", body)
    outcomes: list[Outcome] = []
    while proposal := propose(subject, outcomes, Bounds("compile", 1e-2)):
        assert not proposal.candidate.options.compile
        ratios = {"compile": Ratio(0.9, 0.89, 0.91)}
        outcomes.append(Outcome(proposal.candidate, True, "accepted", 1, ratios, seconds=1e-2))
    assert outcomes


@pytest.mark.parametrize(("busy", "graph"), [(1e-3, True), (2.9e-3, False), (None, False)])
def test_idle_gpu_of_a_profile_calls_for_a_graph(tmp_path, busy, graph):
    subject = subject_of(tmp_path, NORMS, "64, 32", "self.c(x)")
    first = propose(subject, []).candidate
    ratios = {"compile": Ratio(2.0, 1.98, 2.02)}
    outcome = Outcome(first, True, "accepted", 1, ratios, seconds=3e-3, busy=busy)
    assert propose(subject, [outcome]).candidate.options.graph is graph


@pytest.mark.parametrize(
    ("capability", "rows", "own"), [((9, 0), 8, True), ((9, 0), 128, False), ((12, 0), 8, False)]
)
def test_layer_of_many_units_has_a_kernel_if_the_library_is_slower(tmp_path, capability, rows, own):
    """Its weights need the shared memory of a cluster, and few rows of a batch."""
    layer, body = "nn.GRU(512, 512, batch_first=True)", "(self.c(x)[0] * 2).softmax(-1)"
    subject = subject_of(tmp_path, layer, f"{rows}, 64, 512", body)
    subject = replace(subject, target=Target("cuda", capability, 132))
    candidate = make_candidate(subject, Options())
    assert candidate.has_recurrences is own
    assert candidate.library_layers is not own
