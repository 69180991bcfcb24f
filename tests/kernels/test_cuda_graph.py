"""Calls replayed as CUDA graphs: the refused calls and, on a GPU, the results of replays."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from cuagent.kernels import replay, unchanged, watch
from cuagent.kernels.cuda_graph import (
    MAX_GRAPHS,
    NotCapturable,
    State,
    _Held,
    casts_not_cached,
    flattened,
    form_of,
    graph_calls,
    is_covered,
    is_traced,
    refusal,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor, power: int = 1) -> torch.Tensor:
        return self.layer(x).relu() ** power * self.scale


def test_calls_on_a_cpu_run_without_a_graph() -> None:
    plain = Block().eval()
    graphed = copy.deepcopy(plain)
    graph_calls(graphed)
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(graphed(x, power=2), plain(x, power=2))
        assert torch.equal(pickle.loads(pickle.dumps(graphed))(x), plain(x))
        assert torch.equal(copy.deepcopy(graphed)(x), plain(x))


def test_required_graph_states_why_there_is_none() -> None:
    model = Block().eval()
    graph_calls(model, required=True)
    with torch.no_grad(), pytest.raises(NotCapturable, match="an argument is not on a GPU"):
        model(torch.randn(3, 8))
    assert refusal(Block(), [torch.ones(1)]) == "the module is in training mode"


def test_traced_and_transformed_calls_run_without_a_graph() -> None:
    seen = list[bool]()

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(is_traced([x]))
        return x

    x = torch.ones(3)
    look(x)
    look(nn.Parameter(x))
    assert seen == [False, False]
    seen.clear()
    torch.func.vmap(look)(x)
    with FlopCounterMode(display=False):
        look(x)
    with forward_ad.dual_level():
        look(forward_ad.make_dual(x, x))
    with FakeTensorMode():
        fake = torch.ones(3)
    look(fake)
    assert seen == [True] * 4
    with FakeTensorMode():
        on_gpu = torch.empty(3, 8, device="cuda")
    assert refusal(Block().eval(), [on_gpu]) == "the call is traced or transformed"


def test_form_differs_where_a_graph_would_compute_something_else() -> None:
    x, spec = torch.randn(4, 8), "spec"
    forms = [
        form_of([x, 1], spec),
        form_of([x, 2], spec),
        form_of([x, True], spec),
        form_of([x.t(), 1], spec),
        form_of([x[:1], 1], spec),
        form_of([x.half(), 1], spec),
        form_of([x, 1], "another structure"),
    ]
    assert len(set(forms)) == len(forms)
    assert form_of([x + 1, 1], spec) == forms[0]
    with torch.inference_mode():
        assert form_of([x, 1], spec) != forms[0]


def test_replaced_parameters_invalidate_a_graph_and_loaded_ones_do_not() -> None:
    model = Block()
    state = State(model)
    assert len(state.tensors) == 3
    model.load_state_dict(Block().state_dict())
    assert state.has_memory()
    assert state.is_current()
    model.layer.bias.data = torch.zeros(8)
    assert not state.has_memory(), "another address"
    state = State(model)
    model.layer.weight = nn.Parameter(model.layer.weight.data)
    assert state.has_memory(), "the graph holds the replaced tensor"
    assert not state.is_current(), "another tensor"


def test_replaced_submodules_invalidate_a_graph() -> None:
    model = nn.Sequential(nn.Sequential(Block()), nn.ReLU())
    state = State(model)
    assert state.is_current()
    model[0][0] = Block()
    assert not state.is_current()
    state = State(model)
    del model[1]
    assert not state.is_current()


def test_positional_leaves_have_no_structure_and_others_keep_theirs() -> None:
    x = torch.ones(2)
    assert flattened((x, 2), {}) == ((x, 2), None)
    for call in (((x,), {"power": 2}), (([x, 2],), {})):
        leaves, spec = flattened(*call)
        assert leaves == [x, 2]
        assert spec is not None
        assert form_of(leaves, spec) != form_of([x, 2], None)


class Scaled(nn.Module):
    """Module whose `values` are computed from its weight, as those of a generated module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.values: tuple[torch.Tensor, ...] = ()
        self.renew()
        self.computed = 0

    def renew(self) -> None:
        self.values = (self.layer.weight.detach() * 2,)

    def compute(self, x: torch.Tensor, doubled: torch.Tensor) -> torch.Tensor:
        self.computed += 1
        return self.layer(x) + x @ doubled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return replay(self, Scaled.compute, (x,), lambda: self.values)


def expected_of(model: Scaled, x: torch.Tensor) -> torch.Tensor:
    return model.layer(x) + x @ (model.layer.weight * 2)


def assert_follows_changes(model: Scaled, x: torch.Tensor) -> None:
    with torch.no_grad():
        for change in (lambda w: None, lambda w: w.mul_(-3), lambda w: w.add_(1)):
            change(model.layer.weight)
            model.renew()
            for step in range(4):
                torch.testing.assert_close(model(x + step), expected_of(model, x + step))


def test_replayed_function_on_a_cpu_is_called_each_time_and_copies_are_independent() -> None:
    model = Scaled().eval()
    x = torch.randn(3, 8)
    assert_follows_changes(model, x)
    assert model.computed == 12
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_follows_changes(twin, x)
    assert model.computed == 12


class Prepared(Scaled):
    """Module that keeps its values in a cache, as a generated module does."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.ones(3)

    def prepare(self) -> tuple[torch.Tensor, ...]:
        known = self.__dict__.get("cache")
        if known is None or known[0] is None or not unchanged(known[0]):
            known = watch(self, ("layer.weight",)), (self.layer.weight.detach() * 2,)
            self.__dict__["cache"] = known
        return known[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return replay(self, Scaled.compute, (x,), self.prepare, "cache")


def test_values_count_as_prepared_until_a_parameter_is_changed_in_place() -> None:
    model = Prepared().eval()
    values = model.prepare()
    held = _Held(model, Scaled.compute, values)
    assert held.is_prepared(model.__dict__["cache"])
    assert not held.is_prepared((None, values)), "an inference tensor has no count of changes"
    assert not held.is_prepared(None)
    with torch.no_grad():
        model.layer.weight.mul_(2)
    assert not held.is_prepared(model.__dict__["cache"])
    assert model.prepare() is not values
    assert not held.is_prepared(model.__dict__["cache"]), "the graph reads other values"


def test_plain_attributes_are_compared_by_prepare_alone() -> None:
    model = Prepared().eval()
    assert is_covered(watch(model, ("layer.weight", "layer.bias")), model)
    assert not is_covered(watch(model, ("layer.weight", "plain")), model)


def test_module_with_a_cache_follows_changes() -> None:
    model = Prepared().eval()
    x = torch.randn(3, 8)
    assert_follows_changes(model, x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_follows_changes(twin, x)


@pytest.mark.gpu
def test_replayed_module_with_a_cache_follows_changes() -> None:
    model = Prepared().eval().cuda()
    x = torch.randn(3, 8, device="cuda")
    assert_follows_changes(model, x)
    assert model.computed < 3 * 6, "the later calls with equal values are replays"
    model.layer = nn.Linear(8, 8).cuda()
    assert_follows_changes(model, x)


class Functional(nn.Module):
    """Module without prepared values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return replay(self, Functional.compute, (x,))


def test_shallow_copy_with_other_weights_does_not_call_the_original() -> None:
    """torch.nn.DataParallel makes such copies."""
    model, x = Functional().eval(), torch.randn(3, 8)
    for _ in range(2):
        model(x)
    twin = copy.copy(model)
    layer = nn.Linear(8, 8)
    twin.__dict__["_modules"] = {"layer": layer}
    for _ in range(3):
        assert torch.equal(twin(x), layer(x))
        assert torch.equal(model(x), model.layer(x))


def test_casts_of_a_captured_call_follow_the_weights() -> None:
    layer, x = nn.Linear(8, 8), torch.randn(3, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        layer(x)  # fills the cache
        layer.weight.mul_(-2)
        with casts_not_cached():
            found = layer(x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found, layer(x))


@pytest.mark.gpu
def test_graph_captured_under_autocast_follows_the_weights(model: Block) -> None:
    x = torch.randn(5, 8, device="cuda")
    for factor in (1, -2, 3):
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            model.layer.weight.mul_(factor)
            found = [model(x) for _ in range(2)]
            junk = [torch.full((8, 8), 9, device="cuda", dtype=torch.bfloat16) for _ in range(9)]
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            for each in found:
                torch.testing.assert_close(each, model.forward(x))
        del junk


def test_replayed_function_is_part_of_a_compiled_caller() -> None:
    model = Scaled().eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(3, 8)
    with torch.no_grad():
        for step in range(3):
            torch.testing.assert_close(compiled(x + step), expected_of(model, x + step))


@pytest.mark.gpu
def test_replayed_function_follows_new_values_and_new_inputs() -> None:
    model = Scaled().eval().cuda()
    model.renew()
    x = torch.randn(3, 8, device="cuda")
    assert_follows_changes(model, x)
    assert model.computed < 3 * 6, "the later calls with equal values are replays"
    with torch.no_grad():
        before = model.computed
        results = [model(x * k) for k in range(3)]
        assert model.computed == before
        for k, result in enumerate(results):
            torch.testing.assert_close(result, expected_of(model, x * k))
        twin = copy.deepcopy(model)
        twin.layer.weight.zero_()
        twin.renew()
        for _ in range(3):
            torch.testing.assert_close(twin(x), twin.layer.bias.expand(3, 8))


@pytest.fixture
def model() -> Block:
    made = Block().eval().cuda()
    graph_calls(made, required=True)
    return made


@pytest.mark.gpu
def test_replay_computes_new_values_and_keeps_earlier_results(model: Block) -> None:
    inputs = [torch.randn(5, 8, device="cuda") for _ in range(3)]
    with torch.no_grad():
        results = [model(x, power=2) for x in inputs]
        for x, result in zip(inputs, results, strict=True):
            torch.testing.assert_close(result, model.forward(x, power=2))


@pytest.mark.gpu
def test_replay_follows_changed_replaced_and_loaded_weights(model: Block) -> None:
    x = torch.randn(5, 8, device="cuda")
    with torch.no_grad():
        model(x)
        model.layer.weight.mul_(-2)
        torch.testing.assert_close(model(x), model.forward(x))
        model.layer.bias.data = torch.ones(8, device="cuda")
        torch.testing.assert_close(model(x), model.forward(x))
        model.load_state_dict(Block().state_dict())
        torch.testing.assert_close(model(x), model.forward(x))
        model.layer = nn.Linear(8, 8).cuda()
        torch.testing.assert_close(model(x), model.forward(x))


@pytest.mark.gpu
def test_each_form_has_its_graph_and_their_number_is_bounded() -> None:
    model = Block().eval().cuda()
    graph_calls(model)
    with torch.no_grad():
        for rows in range(1, MAX_GRAPHS + 3):
            x = torch.randn(rows, 8, device="cuda")
            for _ in range(2):
                torch.testing.assert_close(model(x), model.forward(x))
    assert len(model._compiled_call_impl._graphs) == MAX_GRAPHS


@pytest.mark.gpu
def test_replays_on_two_streams_do_not_overlap(model: Block) -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [torch.randn(4096, 8, device="cuda") for _ in range(20)]
    with torch.no_grad():
        model(inputs[0])
        torch.cuda.synchronize()
        results = []
        for k, x in enumerate(inputs):
            with torch.cuda.stream(streams[k % 2]):
                results.append(model(x))
        torch.cuda.synchronize()
        for x, result in zip(inputs, results, strict=True):
            torch.testing.assert_close(result, model.forward(x))


class ChangesItsInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2


class ReadsAValue(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum().item() > 0 else x


class ReturnsItsInput(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x * 2


@pytest.mark.gpu
@pytest.mark.parametrize("cls", [ChangesItsInput, ReadsAValue, ReturnsItsInput])
def test_forward_that_a_replay_would_change_runs_without_a_graph(cls: type[nn.Module]) -> None:
    plain, graphed = cls().eval(), cls().eval()
    graph_calls(graphed)
    for k in range(3):
        x = torch.full((6,), float(k + 1), device="cuda")
        y = x.clone()
        torch.testing.assert_close(graphed(x), plain(y))
        torch.testing.assert_close(x, y)
    graph_calls(required := cls().eval(), required=True)
    with pytest.raises(NotCapturable):
        required(torch.ones(6, device="cuda"))
    assert torch.randn(8, device="cuda").std() > 0  # a failed capture leaves the generator usable


@pytest.mark.gpu
def test_compiled_module_is_captured(model: Block) -> None:
    compiled = Block().eval().cuda()
    compiled.compile()
    graph_calls(compiled, required=True)
    x = torch.randn(5, 8, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), compiled.forward(x))


@pytest.mark.gpu
def test_inference_tensors_are_replayed(model: Block) -> None:
    with torch.inference_mode():
        inputs = [torch.randn(5, 8, device="cuda") for _ in range(3)]
        results = [model(x) for x in inputs]  # each call needs a graph (`required`)
        for x, result in zip(inputs, results, strict=True):
            assert result.is_inference()
            torch.testing.assert_close(result, model.forward(x))


@pytest.mark.gpu
def test_change_of_an_inference_tensor_is_made_in_each_call() -> None:
    module = ChangesItsInput().eval()
    graph_calls(module)
    with torch.inference_mode():
        x = torch.zeros(4, device="cuda")
        for step in range(1, 4):
            assert (module(x) == 2 * step).all()
            assert (x == step).all()
