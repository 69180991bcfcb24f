"""Modules whose calls pass or return objects: captured, packaged and applied in their script."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripts import Run, opened, printed_by

from cuagent.attempt import Attempt
from cuagent.cli.script import captured_of
from cuagent.package.folder import write_files
from cuagent.package.guarded import guarded_files
from cuagent.task import load_task
from cuagent.verify.domain import Domain, TensorForm

INIT = '{"kind": "list", "items": [{"kind": "list", "items": []}, '
INIT += '{"kind": "dict", "keys": [], "items": []}]}'
COUNTS = """

class ModelNew(Model):
    ran = 0

    def forward(self, *args):
        ModelNew.ran += 1
        return super().forward(*args)
"""
PRINTS = """
import net_fast.model_new_verified.model_new as verified
print("ran", verified.ModelNew.ran)
"""
APPLIED = """
import net_fast
net_fast.optimize_({0})
"""


def packaged(folder: Path, *, fewer: int = 0) -> None:
    """Write the package `net_fast` next to a captured folder; its kernel is the module itself.

    `fewer`: number of recorded shapes that the package does not cover.
    """
    task = load_task(folder / "task.py", device="cpu")
    facts = captured_of(task, folder, "")
    assert facts is not None
    manifest = json.loads((folder / "manifest.json").read_text())
    shapes = [shape for shape in manifest["shapes"] if shape["task"] is not None]
    shapes.sort(key=lambda shape: (shape["task"] != "task.py", shape["task"]))
    domains = [_domain(shape["inputs"]) for shape in shapes[: len(shapes) - fewer]]
    facts = replace(facts, shapes=tuple(domains[1:]))
    attempt = Attempt((("model_new.py", task.source + COUNTS),))
    files = guarded_files(attempt, task, domains[0], "reference.py", facts)
    write_files(files, folder.parent / "net_fast")
    names = "from .model_new import optimize_, restore_\n"
    (folder.parent / "net_fast" / "__init__.py").write_text(names)


def _domain(inputs: list[dict[str, Any]]) -> Domain:
    nesting = {"kind": "list", "items": [{"kind": "tensor"} for _ in inputs]}
    forms = tuple(TensorForm(x["dtype"], tuple(x["shape"]), tuple(x["stride"])) for x in inputs)
    names = tuple(x["name"] for x in inputs)
    return Domain("cpu", names, json.dumps(nesting), forms, INIT)


@pytest.fixture
def ran(tmp_path: Path, command_python: list[str]) -> Callable[[str], list[str]]:
    """Run a script in tmp_path and return the lines that it prints."""

    def run(text: str) -> list[str]:
        (tmp_path / "changed.py").write_text(text)
        return printed_by(command_python, tmp_path, "changed.py").splitlines()

    return run


GENERATES = """
import torch
from transformers import {0}Config, {0}ForCausalLM

torch.manual_seed(0)
config = {0}Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
                   num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
model = {0}ForCausalLM(config).eval()
ids = torch.randint(3, 64, (2, 5))
# apply here
with torch.no_grad():
    for _ in range(2):
        out = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False,
                             pad_token_id=0, return_dict_in_generate=True, output_logits=True)
print(out.sequences.tolist())
print([float(x.double().sum()) for x in out.logits])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "Qwen2"])
def test_all_layers_of_a_generating_decoder_run_the_kernel(
    capture: Run, ran: Callable[[str], list[str]], name: str
) -> None:
    script = GENERATES.format(name)
    done = capture(script, "model.model.layers.0")
    assert done.checked["difference"] == 0.0
    assert not done.manifest["objects"]
    reference = opened(done.folder)
    outputs = reference.model(0)(*reference.inputs(0))
    assert [tuple(x.shape) for x in outputs] == [(2, 1, 32), (2, 2, 6, 8), (2, 2, 6, 8)]
    packaged(done.folder, fewer=1)
    before = ran(script)
    after = ran(script.replace("# apply here", APPLIED.format("model")) + PRINTS)
    assert after[:2] == before
    assert after[2] == "ran 18"  # three layers, in two times three of the four decoding steps


SCALED = """
import torch
from torch import nn
from transformers import DynamicCache

class Layer(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.layer_idx = at
        self.fc = nn.Linear(8, 8)

    def forward(self, x, cache=None, bias=None):
        keys, values = cache.update(self.fc(x), x, self.layer_idx)
        return bias + keys.sum(-2) + values.sum(-2) {0}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(k) for k in range(3)])

    def forward(self, x, cache):
        for layer in self.layers:
            x = x + layer(x, cache=cache, bias=torch.ones(1).expand(8))[..., None, :]
        return x

torch.manual_seed(0)
net = Net().eval()
# apply here
with torch.{1}():
    for _ in range(2):
        cache = DynamicCache()
        for _ in range(3):
            out = net(torch.ones(2, 1, 1, 8), cache)
print(out.double().sum().item(), cache.layers[2].keys.double().sum().item())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "mode", "runs"),
    [("", "inference_mode", 12), ("/ (self.layer_idx + 1)", "no_grad", 4)],
)
def test_layers_that_compute_with_their_index_keep_their_code(
    capture: Run, ran: Callable[[str], list[str]], scale: str, mode: str, runs: int
) -> None:
    script = SCALED.format(scale, mode)
    done = capture(script, "net.layers.0")
    assert list(done.manifest["call"]["libraries"]) == ["transformers"]
    packaged(done.folder)
    after = ran(script.replace("# apply here", APPLIED.format("net")) + PRINTS)
    assert after[:-1] == ran(script)
    assert after[-1] == f"ran {runs}"


RESULTS = """
import torch
from dataclasses import dataclass
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

@dataclass
class Batch:
    x: torch.Tensor
    scale: float

@dataclass
class Scores:
    kept: torch.Tensor
    best: torch.Tensor
    note: str = "best"

class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, given, batch, seen=None):
        x = self.fc(given.last_hidden_state) * batch.scale + batch.x
        seen.append(x)
        scores = Scores(x, x.amax(-1))
        return BaseModelOutput(last_hidden_state=x, hidden_states=(x, batch.x)), scores, None

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        seen = []
        given = BaseModelOutput(last_hidden_state=x)
        out, scores, _ = self.inner(given, Batch(x, 0.5), seen=seen)
        assert type(out) is BaseModelOutput and type(scores) is Scores
        assert seen[0] is out.last_hidden_state is out.hidden_states[0] is scores.kept
        assert out.hidden_states[1] is x
        return out[0].sum() + scores.best.sum() + len(seen) + len(scores.note)

torch.manual_seed(0)
net = Net()
# apply here
x = torch.randn(4, 8, requires_grad=True)
call = {0}
for _ in range(2):
    loss = call(x)
    loss.backward()
print(loss.item(), x.grad.double().sum().item(), net.inner.fc.weight.grad.double().sum().item())
"""
COMPILED = "torch.compile(net, fullgraph=True, backend='aot_eager')"


@pytest.mark.slow
@pytest.mark.parametrize("call", ["net", COMPILED])
def test_outputs_and_dataclasses_keep_their_class_and_their_gradients(
    capture: Run, ran: Callable[[str], list[str]], call: str
) -> None:
    script = RESULTS.format(call)
    done = capture(script, "net.inner")
    assert done.checked["difference"] == 0.0
    reference = opened(done.folder)
    assert [tuple(x.shape) for x in reference.model(0)(*reference.inputs(0))] == [(4, 8), (4,)]
    packaged(done.folder)
    applied = APPLIED.format("net").replace("(net)", "(net, gradients=True)")
    after = ran(script.replace("# apply here", applied) + PRINTS)
    assert after[:-1] == ran(script)
    assert after[-1] != "ran 0"


REGISTRY = """
import torch
from torch import nn

class Inner(nn.Module):
    def forward(self, x):
        return x + 1

INNER = {"plain": Inner}

class Net(nn.Module):
    def __init__(self, kind="plain"):
        super().__init__()
        self.inner = INNER[kind]()

    def forward(self, x):
        return self.inner(x)

net = Net()
# apply here
print(net(torch.ones(2, 8)).sum().item())
"""


@pytest.mark.slow
def test_a_class_whose_file_has_classes_in_a_dict_is_recognized(
    capture: Run, ran: Callable[[str], list[str]]
) -> None:
    packaged(capture(REGISTRY, "net").folder)
    applied = REGISTRY.replace("# apply here", APPLIED.format("net")) + PRINTS
    assert ran(applied)[-1] == "ran 1"
    other = applied.replace("return x + 1", "return x + 2")
    assert ran(other)[-1] == "ran 0"


@pytest.mark.slow
def test_another_version_of_a_library_leaves_the_module(
    capture: Run, ran: Callable[[str], list[str]]
) -> None:
    script = SCALED.format("", "no_grad")
    packaged(capture(script, "net.layers.0").folder)
    other = "import transformers\ntransformers.__version__ = '0.1'\n" + APPLIED.format("net")
    assert ran(script.replace("# apply here", other) + PRINTS)[-1] == "ran 0"


NUMBERS = """
import torch
from torch import nn

class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        y = self.fc(x)
        return y, {0}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        y, number = self.inner(x)
        return y.sum().item(), number

torch.manual_seed(0)
net = Net().eval()
# apply here
with torch.no_grad():
    for seed in {1}:
        torch.manual_seed(seed)
        print(*net(torch.randn(4, 8)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "ran_count"), [("float(y.mean())", 0), ("int(y.argmax())", 0), ("0.5", 3)]
)
def test_number_that_a_call_computes_from_its_inputs_is_no_constant(
    capture: Run, ran: Callable[[str], list[str]], number: str, ran_count: int
) -> None:
    """Calls on equal inputs, as in the captured script, do not show it."""
    done = capture(NUMBERS.format(number, [1, 1]), "net.inner")
    packaged(done.folder)
    script = NUMBERS.format(number, [1, 2, 3])
    after = ran(script.replace("# apply here", APPLIED.format("net")) + PRINTS)
    assert after[:-1] == ran(script)
    assert after[-1] == f"ran {ran_count}"
