"""Large random fills are put off; a constructor that needs their numbers gets the usual ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cuagent.task import Values, deferred_fills, load_task, open_reference
from cuagent.task.deferred_fills import DeferredFills


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_fills, "LEAST", 64)


class Deferrable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.rand(3)
        self.linear = nn.Linear(16, 32)
        self.norm = nn.BatchNorm1d(32)
        self.conv = nn.Conv2d(4, 8, 3)
        self.rnn = nn.GRU(8, 8, num_layers=2)
        self.weight = nn.Parameter(torch.randn(16, 8))
        self.register_buffer("table", torch.rand(16, 16))
        self.tied = nn.Linear(16, 32, bias=False)
        self.tied.weight = self.linear.weight
        nn.init.trunc_normal_(self.conv.weight, std=0.5)
        nn.init.zeros_(self.linear.bias)


class InitialisedAgain(nn.Module):
    """Replaces the initial numbers in the way of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16))
        for layer in self.layers:
            layer.weight.data.normal_(mean=0.0, std=3.0)
            layer.bias.data.zero_()


class Touching(nn.Module):
    """Every large fill is read or changed by the constructor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 32)
        self.weight = nn.Parameter(torch.randn(16, 8) * 0.02)
        self.embedding = nn.Embedding(16, 8, padding_idx=0)
        self.layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 2)
        self.scale = float(self.linear.weight.max())
        self.register_buffer("doubled", torch.rand(10, 10).double(), persistent=False)


def kept_outside(model: nn.Module) -> None:
    raw = torch.randn(16, 8)
    model.weight, model.raw = nn.Parameter(raw), raw


def kept_as_parameter(model: nn.Module) -> None:
    model.weight = nn.Parameter(torch.randn(16, 8))
    model.all = [nn.Parameter(model.weight)]


def unregistered(model: nn.Module) -> None:
    model.weight = torch.randn(16, 8)


def not_persistent(model: nn.Module) -> None:
    model.register_buffer("weight", torch.randn(16, 8), persistent=False)


def other_draw(model: nn.Module) -> None:
    model.linear = nn.Linear(16, 32)
    model.noise = torch.randint(0, 1000, (10,))


def own_seed(model: nn.Module) -> None:
    model.linear = nn.Linear(16, 32)
    torch.manual_seed(3)
    model.other = nn.Linear(16, 32)


def same_seed(model: nn.Module) -> None:
    model.linear = nn.Linear(16, 32)
    torch.manual_seed(7)
    model.other = nn.Linear(16, 32)


def parts(model: nn.Module) -> None:
    both = torch.empty(32, 16)
    model.gate, model.up = nn.Parameter(both[:16]), nn.Parameter(both[16:])
    nn.init.normal_(both)


def transposed(model: nn.Module) -> None:
    model.encoder = nn.Parameter(torch.empty(16, 16))
    model.decoder = nn.Parameter(model.encoder.data.t())
    nn.init.normal_(model.encoder)


def filled_in_another_shape(model: nn.Module) -> None:
    model.weight = nn.Parameter(torch.empty(8, 4, 16))
    nn.init.kaiming_uniform_(model.weight.data.view(32, 16))


def replaced(model: nn.Module) -> None:
    model.linear = nn.Linear(16, 32)
    model.linear = nn.Linear(2, 2)


class OwnLoading(nn.Linear):
    def _load_from_state_dict(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        super()._load_from_state_dict(*args, **kwargs)


def own_loading(model: nn.Module) -> None:
    model.linear = OwnLoading(16, 32)


class Unsure(nn.Module):
    def __init__(self, build: Callable[[nn.Module], None]) -> None:
        super().__init__()
        build(self)


def built(construct: Callable[[], nn.Module], *, draw: bool = True) -> tuple[nn.Module, bool]:
    torch.manual_seed(7)
    fills = DeferredFills()
    with fills:
        model = construct()
    return model, fills.finish(model, "cpu", draw=draw) and fills.was_used


def test_fills_are_put_off_and_have_the_same_distributions() -> None:
    torch.manual_seed(7)
    right = Deferrable()
    model, done = built(Deferrable)
    assert done
    assert torch.equal(model.first, right.first)
    for name, tensor in right.state_dict().items():
        found = model.state_dict()[name]
        assert found.shape == tensor.shape
        spread = float(tensor.float().std(correction=0))
        assert float(found.float().std(correction=0)) == pytest.approx(spread, rel=0.5), name
    assert model.tied.weight is model.linear.weight
    assert not model.linear.bias.any()
    model.load_state_dict(right.state_dict())
    x = torch.ones(1, 16)
    assert torch.equal(model.linear(x), right.linear(x))
    assert torch.equal(built(Deferrable)[0].weight, model.weight), "one seed gives one model"


def test_numbers_that_are_replaced_are_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeferredFills, "_make_all", lambda _: pytest.fail("fills were made"))
    model, done = built(InitialisedAgain)
    assert done
    for layer in model.layers:
        assert 2.0 < float(layer.weight.detach().std()) < 4.0
        assert not layer.bias.any()


def kept_data(model: nn.Module) -> None:
    model.linear = nn.Linear(16, 32)
    model.start = model.linear.weight.data


def test_no_number_is_drawn_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []
    monkeypatch.setattr(nn.init, "_no_grad_uniform_", lambda tensor, *_: drawn.append(tensor))
    _, done = built(lambda: nn.Linear(16, 32), draw=False)
    assert done
    assert not drawn


def test_numbers_that_the_constructor_uses_are_the_usual_ones() -> None:
    torch.manual_seed(7)
    right = Touching()
    after = torch.rand(3)
    model, _ = built(Touching, draw=False)
    assert torch.equal(torch.rand(3), after), "nothing is put off at the end"
    assert model.scale == right.scale
    assert torch.equal(model.doubled, right.doubled)
    for name, tensor in right.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    "build",
    [
        kept_outside,
        kept_as_parameter,
        unregistered,
        not_persistent,
        kept_data,
        other_draw,
        own_seed,
        same_seed,
        parts,
        transposed,
        filled_in_another_shape,
        replaced,
        own_loading,
    ],
)
def test_models_that_must_be_constructed_again(build: Callable[[nn.Module], None]) -> None:
    _, done = built(lambda: Unsure(build))
    assert not done


def test_small_models_are_as_before() -> None:
    torch.manual_seed(7)
    right = nn.Linear(4, 4)
    model, used = built(lambda: nn.Linear(4, 4))
    assert not used
    assert torch.equal(model.weight, right.weight)


SOURCE = """
import torch
from torch import nn
class Model(nn.Module):
    count = 0
    def __init__(self):
        super().__init__()
        Model.count += 1
        self.linear = nn.Linear(16, 32)
        self.noise = {noise}
    def forward(self, x):
        return self.linear(x)
def get_inputs():
    return [torch.rand(4, 16)]
"""


@pytest.mark.parametrize(("noise", "constructions"), [("None", 2), ("torch.randint(9, (4,))", 3)])
def test_reference_falls_back_once(tmp_path: Path, noise: str, constructions: int) -> None:
    file = tmp_path / "model.py"
    file.write_text(SOURCE.format(noise=noise))
    usual = open_reference(load_task(file, device="cpu"))
    right = usual.model(5)
    reference = replace(open_reference(usual.task), values=Values.UNDEFINED)
    models = [reference.model(5) for _ in range(2)]
    assert reference.cls.count == constructions
    for model in models:
        model.load_state_dict(right.state_dict())
        assert torch.equal(model.linear(torch.ones(16)), right.linear(torch.ones(16)))
        assert right.noise is None or torch.equal(model.noise, right.noise)


def test_values_are_constructed_on_the_cpu_unless_undefined(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(SOURCE.format(noise="None"))
    reference = open_reference(load_task(file, device="cpu"))
    right = reference.model(5).linear.weight
    there = replace(reference, values=Values.DRAWN_THERE)
    assert torch.equal(there.model(5).linear.weight, right)


def test_errors_of_the_constructor_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(SOURCE.format(noise="self.linear.missing"))
    reference = replace(open_reference(load_task(file, device="cpu")), values=Values.UNDEFINED)
    with pytest.raises(Exception, match="missing"):
        reference.model(5)
