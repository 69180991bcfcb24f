"""Operations after layers are folded into the weights of all layers in one pass."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]
from modules import LAYER_TASK  # type: ignore[import-not-found]

from cuagent.expert import rewrites
from cuagent.expert.options import Options

DEPTH = 12


def test_each_pass_folds_one_operation_into_every_layer(generate, monkeypatch):
    passes, fold = [], rewrites.fold_affine
    monkeypatch.setattr(rewrites, "fold_affine", lambda graph: passes.append(1) or fold(graph))
    block = "nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()"
    task = LAYER_TASK.format(
        layer=f"nn.Sequential({', '.join([block] * DEPTH)})",
        body="self.c(x)",
        shape="2, 4, 40, 40",
    )
    made = generate(task, options=Options(convolutions="library"))
    assert sum("batch_norm" in name for name in made.folded) == DEPTH
    # A norm is a multiplication and an addition; the last pass finds nothing.
    assert len(passes) == 3


def test_candidates_of_a_search_are_generated_once(generate, monkeypatch, tmp_path):
    from cuagent.expert.capture.subject import open_subject
    from cuagent.expert.search import choices, planner
    from cuagent.task import load_task

    path = tmp_path / "task.py"
    path.write_text(LAYER_TASK.format(layer="nn.GELU()", body="self.c(x) * x", shape="64, 32"))
    subject, made = open_subject(load_task(f"{path}:Model")), []
    real = choices.make_candidate
    monkeypatch.setattr(choices, "make_candidate", lambda s, o: made.append(o) or real(s, o))
    first, second = (planner.propose(subject, ()) for _ in range(2))
    assert first is not None
    assert first == second
    assert len(made) == len(set(made))


VIEWED = {
    "tokens": (
        "nn.Sequential(nn.Linear(24, 40, bias=False), nn.BatchNorm1d(40))",
        "(self.c[1](self.c[0](x).flatten(0, 1)).view(5, 7, 40)).relu() * 2",
        "5, 7, 24",
    ),
    "positions": (
        "nn.Sequential(nn.Conv2d(6, 8, 1), nn.BatchNorm1d(8))",
        "self.c[1](self.c[0](x).flatten(2)).tanh() + 1",
        "3, 6, 5, 7",
    ),
}


@pytest.mark.parametrize("name", VIEWED)
def test_norm_behind_a_view_of_a_layer_is_folded(make, name):
    layer, body, shape = VIEWED[name]
    made = make(LAYER_TASK.format(layer=layer, body=body, shape=shape), "Model")
    assert_agrees(made)
    assert any("batch_norm" in name for name in made.candidate.folded)


def test_norm_behind_a_view_that_moves_channels_stays(generate):
    layer = "nn.Sequential(nn.Linear(24, 40), nn.BatchNorm1d(20))"
    body = "self.c[1](self.c[0](x).view(10, 20, 7)).softmax(-1)"
    made = generate(LAYER_TASK.format(layer=layer, body=body, shape="5, 7, 24"))
    assert not made.folded
