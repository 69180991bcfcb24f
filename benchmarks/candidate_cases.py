"""Define the layers and blocks that `candidate_variants.py` times, each with the options of its
candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuagent.expert.candidate import Options

TEXT = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
        self.to(torch.{dtype})

    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.rand({shape}).to(torch.{dtype})]

def get_init_inputs():
    return []
"""
OWN = Options()
WHOLE = Options(partial_sums=False)
TF32 = Options(tf32_few_channels=True)
LIBRARY = Options(convolutions="library")
LAST = Options(convolutions="channels_last")
EVERY = Options(convolutions="every")
COMPILED = Options(compile="default")
REPLAYED = Options(graph=True)
GRAPHS = Options(compile="default", graph=True)


@dataclass(frozen=True)
class Case:
    """A module to time: source lines, input shape, dtype, and options of the expert for each
    candidate (`variants`)."""

    init: str
    """Statements of the module's constructor, separated by "; "."""
    forward: str
    """Statements of the module's forward method, separated by "; "."""
    shape: str
    variants: Mapping[str, Options]
    dtype: str = "float32"

    @property
    def title(self) -> str:
        """Text for the output: layers, input shape and dtype."""
        return f"{self.init.splitlines()[0][:60]} | ({self.shape}) {self.dtype}"

    @property
    def text(self) -> str:
        """Source text of the task file."""
        init, forward = (f"\n{' ' * 8}".join(t.split("; ")) for t in (self.init, self.forward))
        return TEXT.format(init=init, forward=forward, shape=self.shape, dtype=self.dtype)


CONVNEXT = (
    "self.d = nn.Conv2d(C, C, 7, padding=3, groups=C); self.n = nn.LayerNorm(C, eps=1e-6); "
    "self.a, self.b = nn.Linear(C, 4 * C), nn.Linear(4 * C, C); "
    "self.s = nn.Parameter(torch.full((C,), 0.1))",
    "h = self.n(self.d(x).permute(0, 2, 3, 1)); h = self.s * self.b(F.gelu(self.a(h))); "
    "return x + h.permute(0, 3, 1, 2)",
)
SWIN = (
    "self.n1, self.n2 = nn.LayerNorm(96), nn.LayerNorm(96); "
    "self.qkv, self.proj = nn.Linear(96, 288), nn.Linear(96, 96); "
    "self.a, self.b = nn.Linear(96, 384), nn.Linear(384, 96); "
    "self.bias = nn.Parameter(torch.randn(3, 49, 49) * 0.1)",
    "n = x.shape[0]; y = torch.roll(self.n1(x).view(n, 56, 56, 96), (-3, -3), (1, 2)); "
    "y = y.view(n, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 96); "
    "q, k, v = self.qkv(y).view(-1, 49, 3, 3, 32).permute(2, 0, 3, 1, 4).unbind(0); "
    "a = F.softmax(q * 32 ** -0.5 @ k.transpose(-2, -1) + self.bias, -1); "
    "y = self.proj((a @ v).transpose(1, 2).reshape(-1, 49, 96)).view(n, 8, 8, 7, 7, 96); "
    "y = y.permute(0, 1, 3, 2, 4, 5).reshape(n, 56, 56, 96); "
    "x = x + torch.roll(y, (3, 3), (1, 2)).view(n, 3136, 96); "
    "return x + self.b(F.gelu(self.a(self.n2(x))))",
)
VIT = (
    "self.n1, self.n2 = nn.LayerNorm(768), nn.LayerNorm(768); "
    "self.qkv, self.proj = nn.Linear(768, 2304), nn.Linear(768, 768); "
    "self.a, self.b = nn.Linear(768, 3072), nn.Linear(3072, 768)",
    "n = x.shape[0]; h = self.qkv(self.n1(x)).view(n, 197, 3, 12, 64); "
    "q, k, v = h.permute(2, 0, 3, 1, 4); "
    "y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, 197, 768); "
    "x = x + self.proj(y); return x + self.b(F.gelu(self.a(self.n2(x))))",
)
BASIC = (
    "self.a = nn.Conv2d(64, 64, 3, padding=1, bias=False); self.an = nn.BatchNorm2d(64); "
    "self.b = nn.Conv2d(64, 64, 3, padding=1, bias=False); self.bn = nn.BatchNorm2d(64)",
    "return F.relu(self.bn(self.b(F.relu(self.an(self.a(x))))) + x)",
)
BOTTLENECK = (
    "self.a = nn.Conv2d(256, 64, 1, bias=False); self.an = nn.BatchNorm2d(64); "
    "self.b = nn.Conv2d(64, 64, 3, padding=1, bias=False); self.bn = nn.BatchNorm2d(64); "
    "self.c = nn.Conv2d(64, 256, 1, bias=False); self.cn = nn.BatchNorm2d(256)",
    "h = F.relu(self.an(self.a(x))); h = F.relu(self.bn(self.b(h))); "
    "return F.relu(self.cn(self.c(h)) + x)",
)
MBCONV = (
    "self.e, self.en = nn.Conv2d(40, 240, 1, bias=False), nn.BatchNorm2d(240); "
    "self.d = nn.Conv2d(240, 240, 5, padding=2, groups=240, bias=False); "
    "self.dn = nn.BatchNorm2d(240); "
    "self.r, self.g = nn.Conv2d(240, 10, 1), nn.Conv2d(10, 240, 1); "
    "self.p, self.pn = nn.Conv2d(240, 40, 1, bias=False), nn.BatchNorm2d(40)",
    "h = F.silu(self.dn(self.d(F.silu(self.en(self.e(x)))))); "
    "s = torch.sigmoid(self.g(F.silu(self.r(h.mean((2, 3), keepdim=True))))); "
    "return x + self.pn(self.p(h * s))",
)
UNET = (
    "self.a = nn.Conv2d(128, 128, 3, padding=1); self.an = nn.GroupNorm(8, 128); "
    "self.b = nn.Conv2d(128, 128, 3, padding=1); self.bn = nn.GroupNorm(8, 128)",
    "return F.silu(self.bn(self.b(F.silu(self.an(self.a(x)))))) + x",
)
SEPARABLE = ", ".join(
    "nn.Conv2d(128, 128, 3, padding=1, groups=128, bias=False), nn.BatchNorm2d(128), nn.ReLU(), "
    "nn.Conv2d(128, 128, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU()"
    for _ in range(10)
)
"""Layers of ten depthwise separable convolutions, as in the middle of MobileNet: 20 launches."""
BLOCK: dict[str, Options] = {
    "own": OWN,
    "replayed": REPLAYED,
    "compiled": COMPILED,
    "graphs": GRAPHS,
}
CHAIN = BLOCK | {"apart": Options(copies=False), "library": LIBRARY}
CASES: dict[str, Case] = {
    "8ch-relu": Case(
        "self.c = nn.Conv2d(8, 64, 3)", "return F.hardswish(F.relu(self.c(x)))",
        "64, 8, 128, 128", {"own": OWN, "tf32": TF32, "last": LAST},
    ),
    "8ch-mean": Case(
        "self.c = nn.Conv2d(8, 64, 3)", "return F.adaptive_avg_pool2d(F.gelu(self.c(x)), 1)",
        "32, 8, 256, 256", {"own": OWN, "whole": WHOLE, "tf32": TF32},
    ),
    "pool-mish": Case(
        "self.c = nn.Conv2d(64, 128, 3)",
        "return F.mish(F.max_pool2d(F.hardswish(self.c(x) - 0.5), 2))",
        "32, 64, 128, 128", {"own": OWN, "own1": Options(tiles=1)},
    ),
    "3d-8ch": Case(
        "self.c = nn.Conv3d(8, 32, 3); self.s = nn.Parameter(torch.randn(32, 1, 1, 1))",
        "return torch.sigmoid(F.gelu(F.leaky_relu(F.relu(self.c(x)), 0.01))) + self.s",
        "16, 8, 32, 64, 64", {"own": OWN, "tf32": TF32},
    ),
    "t3d-norm": Case(
        "self.c = nn.ConvTranspose3d(3, 16, 3, 2, 1); self.n = nn.GroupNorm(4, 16)",
        "h = self.c(x); return F.hardswish(self.n(torch.sigmoid(h) * h))",
        "32, 3, 16, 32, 32",
        {"own": OWN, "tf32": TF32, "whole": WHOLE,
         "whole tf32": Options(tf32_few_channels=True, partial_sums=False)},
    ),
    "t2d-tanh": Case(
        "self.c = nn.ConvTranspose2d(64, 64, 4, 2, 1, 1)", "return torch.tanh(self.c(x) - 0.3)",
        "8, 64, 256, 256", {"own": OWN, "own1": Options(tiles=1), "last": LAST},
    ),
    "11x11": Case(
        "self.c = nn.Conv2d(3, 96, 11, 4, 2)", "return self.c(x)", "128, 3, 224, 224",
        {"every": EVERY, "every tf32": Options(convolutions="every", tf32_few_channels=True),
         "last": LAST},
    ),
    "16ch-alone": Case(
        "self.c = nn.Conv2d(16, 128, 3)", "return self.c(x)", "4, 16, 1024, 1024",
        {"every": EVERY, "every tf32": Options(convolutions="every", tf32_few_channels=True)},
    ),
    "instance-norm": Case(
        "self.c = nn.Conv2d(64, 128, 3); self.n = nn.InstanceNorm2d(128)",
        "return self.n(self.c(x)) / 2", "32, 64, 128, 128", {"own": OWN, "whole": WHOLE},
    ),
    "3d-norm-mean": Case(
        "self.c = nn.Conv3d(3, 16, 4); self.n = nn.GroupNorm(4, 16)",
        "return self.n(F.hardswish(self.c(x))).mean((2, 3, 4))", "256, 3, 16, 32, 32",
        {"own": OWN, "whole": WHOLE, "tf32": TF32},
    ),
    "t2d-norm": Case(
        "self.c = nn.ConvTranspose2d(64, 64, 3); self.n = nn.GroupNorm(8, 64)",
        "return self.n(F.gelu(self.c(x)))", "16, 64, 256, 256", {"own": OWN, "whole": WHOLE},
    ),
    "8ch-norm": Case(
        "self.c = nn.Conv2d(8, 64, 3); self.n = nn.GroupNorm(16, 64)",
        "h = self.c(x); g = F.hardswish(torch.tanh(self.n(h))); "
        "return torch.logsumexp(h + g, 1, keepdim=True)",
        "64, 8, 128, 128", {"own": OWN, "whole": WHOLE, "tf32": TF32},
    ),
    "groups-4ch": Case(
        "self.c = nn.Conv2d(128, 128, 3, padding=1, groups=32)", "return F.relu(self.c(x)) + 1",
        "32, 128, 56, 56", {"own": OWN, "tf32": TF32, "library": LIBRARY},
    ),
    "groups-24ch": Case(
        "self.c = nn.Conv2d(192, 192, 3, padding=1, groups=8)", "return F.relu(self.c(x)) + 1",
        "32, 192, 28, 28", {"own": OWN, "library": LIBRARY},
    ),
    "groups-pointwise": Case(
        "self.c = nn.Conv2d(240, 60, 1, groups=3)", "return F.relu(self.c(x)) + 1",
        "64, 240, 28, 28", {"own": OWN, "library": LIBRARY},
    ),
    "convnext-96": Case(
        f"C = 96; {CONVNEXT[0]}", CONVNEXT[1], "32, 96, 56, 56", BLOCK, "bfloat16"
    ),
    "convnext-384": Case(
        f"C = 384; {CONVNEXT[0]}", CONVNEXT[1], "32, 384, 14, 14", BLOCK, "bfloat16"
    ),
    "swin": Case(*SWIN, "32, 3136, 96", BLOCK, "float16"),
    "vit": Case(*VIT, "32, 197, 768", BLOCK, "bfloat16"),
    "basic": Case(*BASIC, "32, 64, 56, 56", CHAIN),
    "bottleneck": Case(*BOTTLENECK, "32, 256, 56, 56", CHAIN),
    "mbconv": Case(*MBCONV, "32, 40, 28, 28", BLOCK),
    "separable": Case(
        f"self.c = nn.Sequential({SEPARABLE})", "return self.c(x)", "10, 128, 28, 28", BLOCK
    ),
    "netvlad": Case(
        "self.k = nn.Parameter(torch.randn(512, 32) / 22); self.n = nn.BatchNorm1d(32); "
        "self.centres = nn.Parameter(torch.randn(1, 512, 32) / 22)",
        "w = F.softmax(self.n(x.view(-1, 512) @ self.k), 1).view(-1, 100, 32); "
        "r = torch.matmul(w.transpose(1, 2), x).transpose(1, 2) "
        "- w.sum(1, keepdim=True) * self.centres; "
        "return F.normalize(F.normalize(r).reshape(-1, 32 * 512))",
        "2048, 100, 512", BLOCK,
    ),
    "unet": Case(*UNET, "8, 128, 64, 64", {**BLOCK, "whole": WHOLE}),
}  # fmt: skip
