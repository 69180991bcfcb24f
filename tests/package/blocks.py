"""Source texts of a user's module with a verified kernel, and of a package made of it, for the
tests of `optimize_`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from cuagent.attempt import Attempt
from cuagent.package.folder import write_files
from cuagent.package.guarded import guarded_files
from cuagent.task.task import Task
from cuagent.verify.domain import Domain, TensorForm

REPLACEMENT = "_cuagent_replacement"
USERS = """
import torch
from torch import nn

SHIFT = 0.5

def shifted(x):
    return x + SHIFT

class Block(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps = eps
        self._bias = 0.0
        self.options = {"shift": 0.0}
        self.sizes = [width, {"half": width // 2}]
        self.norm = nn.BatchNorm1d(width)
        self.fc = nn.Linear(width, width)
        self.head = nn.Linear(width, width, bias=False)
        self.head.weight = self.fc.weight

    def forward(self, x):
        more = self.eps + self._bias + self.options["shift"]
        return torch.relu(self.head(self.fc(self.norm(x)))) + shifted(x) + more
"""
# The kernel is a function of C++ for 4 x 8 inputs; torch computes the rest.
KERNEL = """
import torch
from torch import nn
from cuagent.kernels import load

kernels = load("kernels/tail.cpp")

class ModelNew(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.fc = nn.Linear(width, width)
        self.head = nn.Linear(width, width, bias=False)
        self.head.weight = self.fc.weight
        self.ran = 0

    def forward(self, x):
        assert not torch.is_grad_enabled()
        self.ran += 1
        n = self.norm
        h = (x - n.running_mean) * torch.rsqrt(n.running_var + n.eps) * n.weight + n.bias
        h = (h @ self.fc.weight.T + self.fc.bias) @ self.head.weight.T
        out = torch.empty_like(x)
        kernels.tail(out, h, x, x.numel())
        return out
"""
TAIL = """
extern "C" void tail(float* out, const float* h, const float* x, long n) {
  for (long i = 0; i < n; ++i) out[i] = (h[i] > 0 ? h[i] : 0) + (x[i] + 0.5f) + 1e-5f;
}
"""
INIT = '{"kind": "list", "items": [{"kind": "list", "items": [{"kind": "const", "value": 8}]}, '
INIT += '{"kind": "dict", "keys": [], "items": []}]}'
DOMAIN = Domain(
    "cpu",
    ("x",),
    '{"kind": "list", "items": [{"kind": "tensor"}]}',
    (TensorForm("float32", (4, 8), (8, 1)),),
    INIT,
)
TASK = Task(path=Path("users.py"), entry="Block", source=USERS)
ATTEMPT = Attempt((("kernels/tail.cpp", TAIL), ("model_new.py", KERNEL)))


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))


def written(folder: Path, attempt: Attempt = ATTEMPT, task: Task = TASK) -> None:
    write_files(guarded_files(attempt, task, DOMAIN, "reference.py"), folder)
    (folder / "__init__.py").write_text("from .model_new import optimize_, restore_\n")


def drawn(module: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5)
    return module.eval()


def ran(model: Any) -> int:
    return int(model[0].__dict__["_cuagent_replacement"].kernel.ran)


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


CUDA_USERS = """
import torch

class Scale(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width))

    def forward(self, x):
        return x * self.weight
"""
CUDA_NEW = """
import torch
from cuagent.kernels import load

kernels = load("kernels/scale.cu")

class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width))

    def forward(self, x):
        out = x.new_empty(x.shape)
        kernels.scale(out, x, self.weight, x.shape[0], x.shape[1])
        return out
"""
CUDA_KERNEL = """
__global__ void scale_kernel(float* out, const float* x, const float* w, int width) {
  int i = blockIdx.x * width + threadIdx.x;
  out[i] = x[i] * w[threadIdx.x];
}
extern "C" void scale(float* out, const float* x, const float* w, int rows, int width,
                      cudaStream_t stream) {
  scale_kernel<<<rows, width, 0, stream>>>(out, x, w, width);
}
"""
CUDA_ATTEMPT = Attempt((("kernels/scale.cu", CUDA_KERNEL), ("model_new.py", CUDA_NEW)))
CUDA_TASK = Task(path=Path("scale_users.py"), entry="Scale", source=CUDA_USERS)
CUDA_DOMAIN = Domain(
    "cuda",
    ("x",),
    DOMAIN.nesting,
    (TensorForm("float32", (32, 64), (64, 1)),),
    INIT.replace("8", "64"),
)


def cuda_package(folder: Path) -> tuple[ModuleType, ModuleType]:
    """Return the imported package of a CUDA kernel, and the imported file of its user."""
    files = guarded_files(CUDA_ATTEMPT, CUDA_TASK, CUDA_DOMAIN, "reference.py")
    write_files(files, folder / "scale_fast")
    (folder / "scale_fast" / "__init__.py").write_text("from .model_new import optimize_\n")
    (folder / "scale_users.py").write_text(CUDA_USERS)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("scale_fast"), importlib.import_module("scale_users")
    finally:
        sys.path.remove(str(folder))
