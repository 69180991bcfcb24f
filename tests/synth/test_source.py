"""Test labels, fingerprints, sizes and collisions with KernelBench, which read text only."""

from __future__ import annotations

from pathlib import Path

import pytest
from synth_tasks import task

from cuagent.synth.kernelbench import collision, input_shapes, read_problems, sizes_of
from cuagent.synth.labelled import differences
from cuagent.synth.reasons import Reason, Rejected
from cuagent.synth.sizes import Cost, predicted_batch, rounded, solve
from cuagent.synth.source import graph_of, labels, normalized, parse, with_batch

LINEAR = task("h = self.linear(x); return F.relu(h) + x", init="self.linear = nn.Linear(64, 64)")


def test_labels_name_modules_functions_and_python_operators() -> None:
    assert labels(parse(LINEAR)) == ["nn.Linear", "nn.functional.relu", "torch.add"]
    assert labels(parse(task("return torch.linalg.vector_norm(-x, dim=1) @ x"))) == [
        "torch.neg",
        "torch.linalg.vector_norm",
        "torch.matmul",
    ]


@pytest.mark.parametrize(
    "code",
    [
        LINEAR.replace("64", "96").replace("BATCH = 8", "BATCH = 32"),
        LINEAR.replace("self.linear", "self.projection"),
        LINEAR.replace("h = self", "value = self").replace("relu(h)", "relu(value)"),
    ],
)
def test_names_and_sizes_change_no_fingerprint(code: str) -> None:
    assert normalized(parse(code)) == normalized(parse(LINEAR))
    assert graph_of(parse(code)) == graph_of(parse(LINEAR))


def test_blocks_of_libraries_differ_by_their_names() -> None:
    def block(name: str) -> str:
        return task(
            "return self.block(x)",
            init=f"self.block = {name}({name[:2]}Config(hidden_size=64))",
            before=f"from transformers import {name}, {name[:2]}Config",
        )

    digests = {normalized(parse(block(name))) for name in ("T5LayerFF", "ViTMLP")}
    assert len(digests) == 2
    assert normalized(parse(block("ViTMLP").replace("64", "96"))) in digests


def test_graph_is_equal_if_only_temporaries_differ() -> None:
    inlined = LINEAR.replace(
        "h = self.linear(x)\n        return F.relu(h) + x", "return F.relu(self.linear(x)) + x"
    )
    assert normalized(parse(inlined)) != normalized(parse(LINEAR))
    assert graph_of(parse(inlined)) == graph_of(parse(LINEAR))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("return torch.sum(x, dim=0)", "return torch.sum(x, dim=1)"),
        ("return torch.sum(x, dim=1)", "return torch.mean(x, dim=1)"),
        ("return F.gelu(x)", "return F.gelu(x, approximate='tanh')"),
    ],
)
def test_other_computations_have_other_graphs(one: str, other: str) -> None:
    assert graph_of(parse(task(one))) != graph_of(parse(task(other)))


def test_other_inputs_have_other_graphs() -> None:
    bf16 = task("return torch.exp(x)", inputs="torch.randn(BATCH, 64, dtype=torch.bfloat16)")
    assert graph_of(parse(bf16)) != graph_of(parse(task("return torch.exp(x)")))


@pytest.mark.parametrize("code", ["def broken(:", "x = 1", "class Model:\n    pass"])
def test_text_without_a_model_is_refused(code: str) -> None:
    with pytest.raises(ValueError, match=r"Model|forward|Python"):
        parse(code)


def test_label_differences_name_both_sides() -> None:
    assert differences(["nn.ReLU", "torch.add"], ["ReLU", "__add__"]) == ""
    assert differences(["torch.diag"], ["digamma"]) == (
        "declared, not run: diag; run, not declared: digamma"
    )
    assert differences(["torch.exp"], ["exp", "add"], exact=False) == ""
    assert "diag" in differences(["torch.diag"], ["digamma"], exact=False)


def test_predicted_batch_reaches_the_target_or_the_memory_bound() -> None:
    low, high = Cost(80_000, 40_000, 0, 1), Cost(160_000, 80_000, 0, 1)
    free = predicted_batch(low, high, "cpu", "float32", 1e-3, 1 << 40)
    assert 500 < free < 620
    assert predicted_batch(low, high, "cpu", "float32", 1e-3, 100_000) == 20
    assert predicted_batch(low, low, "cpu", "float32", 1e-3, 1 << 40) == 8
    assert rounded(1003.7) == 960


def test_size_is_corrected_until_the_time_is_in_the_window() -> None:
    assert solve(16, (1e-3, 1e-2), lambda batch: batch * 1e-5, 1 << 20) == (256, 256e-5)
    assert solve(4096, (1e-3, 1e-2), lambda batch: batch * 1e-5, 1 << 20) == (256, 256e-5)
    with pytest.raises(Rejected) as caught:
        solve(16, (1e-3, 1e-2), lambda batch: 1e-6, 1 << 10)
    assert caught.value.reason is Reason.TIME


def test_batch_is_replaced_at_its_constant_only() -> None:
    assert "BATCH = 77\n" in with_batch(LINEAR, 77)
    assert with_batch(LINEAR, 77).count("77") == 1


def test_kernelbench_collisions_are_found_by_signature_and_by_text(tmp_path: Path) -> None:
    folder = tmp_path / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    (folder / "19_ReLU.py").write_text(task("return torch.relu(x)"))
    known = read_problems(tmp_path)
    assert [problem.name for problem in known] == ["L1/19"]
    same = task("return self.act(x)", init="self.act = nn.ReLU()")
    assert collision(same, known, sizes_of(["float32[8,64]"])) == (
        "L1/19: equal operators and shapes"
    )
    assert collision(same, known, ("8,65",)) == ""
    assert collision(task("return torch.exp(torch.neg(torch.add(x, 1)))"), known, ("8,64",)) == ""
    renamed = (folder / "19_ReLU.py").read_text().replace("BATCH, 64", "BATCH, 65")
    assert collision(renamed, known) == "L1/19: similar text"


def test_shapes_are_read_without_running_the_rest_of_a_file(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    rest = f"\nopen({str(mark)!r}, 'w')\nclass Other:\n    open({str(mark)!r}, 'w')\n"
    assert input_shapes(task("return x", before=rest)) == ("8,64",)
    network = "from transformers import AutoConfig\nsize = AutoConfig.from_pretrained('x').d\n"
    drawn = "torch.randn(BATCH, size)"
    assert input_shapes(task("return x", before=network, inputs=drawn)) == ()
    assert input_shapes(task("return x", inputs=f"open({str(mark)!r}, 'w')")) == ()
    assert input_shapes(task("return x", inputs=f"torch.load({str(mark)!r})")) == ()
    assert not mark.exists()
