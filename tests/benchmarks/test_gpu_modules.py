"""The task files of `gpu_modules`, computed without memory."""

from __future__ import annotations

import ast
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

FILES = sorted((Path(__file__).parents[2] / "benchmarks" / "gpu_modules").glob("*.py"))
LEAST_BYTES, MOST_BYTES = 1 << 20, 4 << 30
"""Bounds of the bytes of parameters, inputs and outputs of one module. A GPU should have work, and
several processes share its memory."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_module_runs_in_its_size(path: Path) -> None:
    imports = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import)]
    assert {a.name.partition(".")[0] for n in imports for a in n.names} <= {"torch", "math"}
    spec = spec_from_file_location(f"gpu_module_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.device("meta"), torch.no_grad():
        model = module.Model(*module.get_init_inputs()).eval()
        inputs = module.get_inputs()
        found = model(*inputs)
    outputs = [found] if torch.is_tensor(found) else list(found)
    tensors = [*model.parameters(), *model.buffers(), *inputs, *outputs]
    assert LEAST_BYTES < sum(t.nbytes for t in tensors) < MOST_BYTES
    assert any(t.is_floating_point() for t in outputs)


def test_dtypes_are_mixed() -> None:
    """Half precision is used where practice uses it, float32 elsewhere."""
    texts = [path.read_text() for path in FILES]
    assert len(texts) == 25
    assert sum("bfloat16" in text for text in texts) >= 8
    assert sum(".half()" in text for text in texts) >= 3
    assert sum("bfloat16" not in text and ".half()" not in text for text in texts) >= 5
