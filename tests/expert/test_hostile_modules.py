"""The expert writes right text, or none, for modules with unusual names, constants and results."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.export import CaptureError
from cuagent.expert.capture.subject import open_subject
from cuagent.task import load_task

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
WEIGHT = "nn.Parameter(torch.rand(32))"


def _module(body: str, head: str = HEAD, init: str = "pass", argument: str = "x") -> str:
    return f"""{head}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {argument}):
        return {body}


def get_inputs():
    return [torch.randn(8, 32)]


def get_init_inputs():
    return []
"""


def _named(name: str) -> str:
    """Return the text of a module whose parameter of this name becomes a prepared value."""
    return _module(
        f"torch.relu(x * torch.exp(getattr(self, {name!r}) * 2)) + 1",
        init=f"self.register_parameter({name!r}, {WEIGHT})",
    )


def _imported(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _results(source: str, folder: Path) -> tuple[Any, Any, Any]:
    """Return the module's result, the candidate's, and the candidate's when it falls back."""
    path = folder / "task.py"
    path.write_text(source)
    candidate = make_candidate(open_subject(load_task(str(path), device="cpu")), Options())
    assert candidate is not None
    for name, text in candidate.files.items():
        target = folder / "candidate" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    task = _imported(path, "hostile_task")
    reference = task.Model().eval()
    new = _imported(folder / "candidate" / "model_new.py", "hostile_candidate").ModelNew().eval()
    new.load_state_dict(reference.state_dict())
    inputs = task.get_inputs()
    slow = reference(*inputs), new(*inputs)  # under autograd the reference's forward runs
    torch.testing.assert_close(slow[1], slow[0], equal_nan=True)
    with torch.no_grad():
        return reference(*inputs), new(*inputs), new


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(_named("torch"), id="parameter torch"),
        pytest.param(_named("id"), id="parameter id"),
        pytest.param(_named("versions"), id="parameter versions"),
        pytest.param(_named("sources"), id="parameter sources"),
        pytest.param(_named("__w"), id="parameter of two underscores"),
        pytest.param(_named("_prepared_values"), id="the name of the cache"),
        pytest.param(_named("\ufb01"), id="a letter that Python replaces"),
        pytest.param(
            _module(
                "torch.relu(torch.minimum(x, torch.tensor([float('inf'), 1, -float('inf'), "
                "float('nan')]).repeat(8))) * 2"
            ),
            id="constant with infinities",
        ),
        pytest.param(
            _module("torch.relu(relu_mul_add_kernel) * 2 + 1", argument="relu_mul_add_kernel"),
            id="argument of a kernel's name",
        ),
        pytest.param(
            _module(
                "torch.relu(x) * 2 + self._fits(x) + self._prepare()",
                init="self.k = 1",
            ).replace(
                "    def forward",
                "    def _fits(self, x):\n        return self.k\n\n"
                "    def _prepare(self):\n        return 2\n\n    def forward",
            ),
            id="methods of the names of ours",
        ),
        pytest.param(
            "from __future__ import annotations\n"
            + _module("torch.relu(x) * 2 + 1", argument="x: Undefined"),
            id="an annotation that is never evaluated",
        ),
    ],
)
def test_an_unusual_module_gets_a_right_candidate(source: str, tmp_path: Path) -> None:
    expected, got, _ = _results(source, tmp_path)
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("result", "plain"),
    [
        ("{'a{0}': y * 2, \"b'\": y + 1}", None),
        ("[y * 2, {'}': y + 1}, {'{': (y,)}]", None),
        ("(y * 2 + 1, 'mul', 'a{0}\"', None, float('inf'))", ["mul", 'a{0}"', None, float("inf")]),
    ],
)
def test_strings_and_braces_in_a_result_stay_what_they_are(
    result: str, plain: list[Any] | None, tmp_path: Path
) -> None:
    source = _module("self.give(torch.relu(x))").replace(
        "    def forward", f"    def give(self, y):\n        return {result}\n\n    def forward"
    )
    if plain is not None:
        path = tmp_path / "task.py"
        path.write_text(source)
        candidate = make_candidate(open_subject(load_task(str(path), device="cpu")), Options())
        assert candidate is not None
        returned = candidate.files["model_new.py"].rpartition("return (")[2]
        assert "'mul', 'a{0}\"', None, float('inf')" in returned
        return
    expected, got, _ = _results(source, tmp_path)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "source",
    [
        _module("load(x) * 2", head=f"{HEAD}\n\ndef load(x):\n    return torch.relu(x) + 1\n"),
        _module("F(x) * 2", head="import torch\nfrom torch import nn\n\nF = nn.ReLU()\n"),
        _module("F.relu() * 2 + 1", argument="F"),
        _module("super.relu() * 2 + 1", argument="super"),
    ],
)
def test_names_with_another_meaning_are_refused(source: str, tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(source)
    with pytest.raises(CaptureError, match="rename it"):
        open_subject(load_task(str(path), device="cpu"))


def test_changed_weights_without_a_version_counter_take_effect(tmp_path: Path) -> None:
    """Parameters made in inference mode count no changes."""
    with torch.inference_mode():
        _, _, new = _results(_named("w"), tmp_path)
        x = torch.rand(8, 32)
        before = new(x)
        new.w.add_(1)
        torch.testing.assert_close(new(x), new.__class__.__base__.forward(new, x))
        assert not torch.equal(new(x), before)


def test_a_change_that_bypasses_the_counter_is_announced_by_torch(tmp_path: Path) -> None:
    """docs/concepts/expert.md names this remedy."""
    _, _, new = _results(_named("w"), tmp_path)
    x = torch.rand(8, 32)
    with torch.no_grad():
        new(x)
        new.w.data.add_(1)
        torch.autograd.graph.increment_version(new.parameters())
        torch.testing.assert_close(new(x), new.__class__.__base__.forward(new, x))
