"""The tasks that were once refused for lack of memory (issue 18), at any size, with candidates."""

from __future__ import annotations

from dataclasses import dataclass

from cuagent.attempt import Attempt

HEAD = "import torch\nimport torch.nn.functional as F\n\nclass {name}(torch.nn.Module):\n"
FLOATS = 1 << 18
"""Number of float32 values in one MiB."""


@dataclass(frozen=True)
class LargeTask:
    """A module whose inputs, weights and outputs take a given number of MiB, and an honest
    candidate."""

    arguments: str
    shape: str
    """Shape of each input as text; `{k}` is computed from the size in MiB."""
    per_k: int
    """Number of elements of all inputs and outputs together for each unit of `k`."""
    reference: str
    honest: str
    count: int = 1
    """Number of inputs."""
    init: str = ""

    def module(self, name: str, body: str, mib: float) -> str:
        """Return the source text of a module called `name` with this body of forward, at a size of
        `mib` MiB."""
        lines = [HEAD.format(name=name)]
        if self.init:
            lines.append(
                f"    def __init__(self):\n        super().__init__()\n        {self.init}\n"
            )
        body = body.replace("\n", "\n        ")
        lines.append(f"    def forward(self, {self.arguments}):\n        {body}\n")
        shape = self.shape.format(k=max(1, round(mib * FLOATS / self.per_k)))
        draws = ", ".join([f"torch.rand({shape})"] * self.count)
        lines.append(f"\ndef get_inputs():\n    return [{draws}]\n")
        return "\n".join(lines)

    def attempt(self, body: str, mib: float) -> Attempt:
        """Return an attempt with this body of forward, at a size of `mib` MiB."""
        return Attempt((("model_new.py", self.module("ModelNew", body, mib)),))


TASKS = {
    "huber": LargeTask(
        "p, t", "256, {k}", 512, "return F.smooth_l1_loss(p, t)", "return F.huber_loss(p, t)", 2
    ),
    "rms norm": LargeTask(
        "x",
        "64, 32, {k}, 16",
        2 * 64 * 32 * 16,
        "return x / torch.sqrt((x ** 2).mean(1, keepdim=True) + 1e-5)",
        "return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5)",
    ),
    "average pooling": LargeTask(
        "x", "16, 16, {k}, 132", 16 * 16 * 132, "return F.avg_pool2d(x, 11)",
        "return F.avg_pool2d(x, (1, 11)).unfold(2, 11, 11).mean(-1)",
    ),
    "mean": LargeTask(
        "x", "64, 128, {k}", 64 * 128, "return x.mean(1)", "return x.sum(1) / x.shape[1]"
    ),
    "pointwise convolution": LargeTask(
        "x",
        "16, 32, {k}, 64",
        16 * (32 + 64) * 64,
        "return self.conv(x)",
        "w = self.conv.weight[:, :, 0, 0]\n"
        "y = torch.einsum('oc,nchw->nohw', w, x)\n"
        "return y + self.conv.bias[:, None, None]",
        init="self.conv = torch.nn.Conv2d(32, 64, 1)",
    ),
}  # fmt: skip

LAST_SLICE = {
    "huber": "n = p.shape[0]\nreturn F.huber_loss(p[:-1], t[:-1]) * (n - 1) / n",
    "rms norm": "y = x / torch.sqrt((x ** 2).mean(1, keepdim=True) + 1e-5)\n"
    "y[-1, -1, -1] = 0\nreturn y",
    "average pooling": "y = F.avg_pool2d(x, 11)\ny[-1, -1, -1] = 0\nreturn y",
    "mean": "y = x.mean(1)\ny[-1, -16:] = 0\nreturn y",
    "pointwise convolution": "y = self.conv(x)\ny[-1, :, -1] = 0\nreturn y",
}
"""Bodies of forward that leave out the end of the last slice, by task."""
ONE_ELEMENT = {
    "huber": "q = t.clone()\nq[128] = p[128]\nreturn F.huber_loss(p, q)",
    "rms norm": "y = x / torch.sqrt((x ** 2).mean(1, keepdim=True) + 1e-5)\n"
    "y.view(-1)[1 << 18] *= 1.5\nreturn y",
    "average pooling": "y = F.avg_pool2d(x, 11)\ny[8, 0, 0, 0] *= 1.5\nreturn y",
    "mean": "y = x.mean(1)\ny[32, 0] = 0\nreturn y",
    "pointwise convolution": "y = self.conv(x)\ny.view(-1)[1 << 18] += 1\nreturn y",
}
"""Bodies of forward that are wrong only at the first element of a block of the comparison, or of a
slice, by task."""
