"""Modules that change tensors of their arguments in place: captured, packaged and applied."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripts import Run, opened
from test_objects_in_calls import APPLIED, PRINTS, packaged, ran

__all__ = ["ran"]  # a fixture

STATIC = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

torch.manual_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
model = LlamaForCausalLM(config).eval()
# apply here
with torch.{0}():
    for _ in range(2):
        cache = StaticCache(config, max_cache_len=8)
        model(torch.randint(3, 64, (2, 3)), past_key_values=cache)
        kept = cache.layers[1].keys
        for _ in range(3):
            out = model(torch.randint(3, 64, (2, 1)), past_key_values=cache)
        assert cache.layers[1].keys is kept
print(out.logits.double().sum().item(), kept.double().sum().item())
print([int(layer.cumulative_length) for layer in cache.layers])
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_all_layers_with_a_static_cache_run_the_kernel_and_keep_its_tensors(
    capture: Run, ran: Callable[[str], list[str]], mode: str
) -> None:
    script = STATIC.format(mode)
    done = capture(script, "model.model.layers.0")
    assert done.checked["difference"] == 0.0
    assert not done.manifest["objects"]
    assert "--time-script" in done.text
    reference = opened(done.folder)
    given = reference.inputs(0)
    before = [x.clone() for x in given]
    reference.model(0)(*given)
    assert all((x == y).all() for x, y in zip(given, before, strict=True))
    packaged(done.folder)
    after = ran(script.replace("# apply here", APPLIED.format("model")) + PRINTS)
    assert after[:2] == ran(script)
    assert after[1] == "[6, 6]"
    assert after[2] == "ran 12"  # two layers, in two times three decoding steps


STATES = """
import torch
from torch import nn

class States:
    def __init__(self, width):
        self.ssm = {{0: torch.zeros(2, width)}}
        self.conv = torch.zeros(2, width)
        self.first = True

class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, states):
        x.mul_(0.5)
        states.first = False
        states.conv.copy_(self.fc(x) + states.conv)
        states.ssm[0].mul_(0.9).add_(states.conv)
        return x, states.ssm[0] * 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x, states):
        given = x + 0
        same, y = self.inner(given, states)
        assert same is given
        return (y + given).sum()

torch.manual_seed(0)
net = Net()
# apply here
call = {0}
with torch.no_grad():
    for _ in range(2):
        states = States(8)
        conv = states.conv
        for _ in range(3):
            out = call(torch.randn(2, 8), states)
        assert states.conv is conv and not states.first
print(out.item(), states.ssm[0].double().sum().item(), conv.double().sum().item())
"""
COMPILED = "torch.compile(net, fullgraph=True, backend='aot_eager')"


@pytest.mark.slow
@pytest.mark.parametrize("call", ["net", COMPILED])
def test_states_and_an_argument_that_a_call_overwrites_get_the_new_values(
    capture: Run, ran: Callable[[str], list[str]], call: str
) -> None:
    script = STATES.format(call)
    done = capture(script, "net.inner")
    assert done.checked["difference"] == 0.0
    assert done.manifest["in_place"] == ["x", "states", "states_1"]
    packaged(done.folder)
    after = ran(script.replace("# apply here", APPLIED.format("net")) + PRINTS)
    assert after[:-1] == ran(script)
    assert after[-1] != "ran 0"
    assert call != "net" or after[-1] == "ran 4"  # the first call of each states has `first`


TRAINS = """
import torch
from torch import nn

class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        x.mul_(x.tanh().detach() + 1)
        return self.fc(x).sigmoid()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        x = x * 2
        return (self.inner(x) * x).sum()

torch.manual_seed(0)
net = Net()
# apply here
call = {0}
x = torch.randn(4, 8, requires_grad=True)
for _ in range(2):
    call(x).backward()
print(round(x.grad.double().sum().item(), 4))
print(round(net.inner.fc.weight.grad.double().sum().item(), 4))
"""


@pytest.mark.slow
@pytest.mark.parametrize("call", ["net", COMPILED])
def test_gradients_use_the_values_from_before_the_change(
    capture: Run, ran: Callable[[str], list[str]], call: str
) -> None:
    script = TRAINS.format(call)
    packaged(capture(script, "net.inner").folder)
    applied = APPLIED.format("net").replace("(net)", "(net, gradients=True)")
    after = ran(script.replace("# apply here", applied) + PRINTS)
    assert after[:-1] == ran(script)
    assert after[-1] != "ran 0"


SHARED = """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x, part):
        part.add_(1)
        return x * 2

net = Net()
x = torch.randn(4, 8)
for _ in range(3):
    net(x, x[1:3])
"""


def test_overwritten_tensor_that_shares_memory_with_another_argument_stays_with_the_module(
    capture: Run,
) -> None:
    done = capture(SHARED, "net")
    assert done.manifest["objects"] == ["x, which is changed in place (part shares memory with x)"]
    assert "keeps your module" in done.text
