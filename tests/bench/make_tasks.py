"""Write small tasks in KernelBench's form for the tests of the bench."""

from __future__ import annotations

from pathlib import Path

from task_text import task_text


def write_task(path: Path, forward: str, inputs: str = "torch.randn(64, 32)", **more: str) -> Path:
    """Write a task file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(task_text(forward, inputs, **more))
    return path


def write_twelve(folder: Path) -> Path:
    """Write twelve tasks, a1 to d3, three of which end without a kernel; return their folder."""
    small = "torch.randn(128, 64)"
    linear = {"init": "self.a = nn.Linear(64, 32)"}
    write_task(folder / "a1_gelu.py", "return F.gelu(x) * 2", small)
    write_task(folder / "a2_softmax.py", "return x.softmax(-1)", small)
    write_task(folder / "a3_norm.py", "return F.layer_norm(x, (64,))", small)
    write_task(folder / "b1_linear.py", "return self.a(x).relu()", small, **linear)
    write_task(folder / "b2_sum.py", "return (x * 3).sum(1)", small)
    write_task(folder / "b3_chain.py", "return torch.tanh(x * 2 + 1) - x", small)
    write_task(
        folder / "c1_loss.py",
        "return ((x - y) ** 2).mean(1)",
        f"{small}, {small}",
        arguments="x, y",
    )
    write_task(folder / "c2_rms.py", "return x / (x.pow(2).mean(-1, True) + 1e-5).sqrt()", small)
    write_task(
        folder / "c3_mlp.py",
        "return self.b(F.silu(self.a(x)))",
        small,
        init="self.a = nn.Linear(64, 32); self.b = nn.Linear(32, 16)",
    )
    write_task(folder / "d1_random.py", "return x + torch.rand_like(x)", small)
    write_task(folder / "d2_constant.py", "return x * 0 + 1", small)
    write_task(folder / "d3_fails.py", "return x @ x", small)
    return folder
