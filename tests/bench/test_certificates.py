"""Find what makes a problem degenerate, and nothing on a problem that is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_tasks import write_task

from cuagent.bench.certificates import Certification, certify
from cuagent.device_lock import DeviceLock
from cuagent.measure.precompile import precompile
from cuagent.task import TaskError, load_task
from cuagent.worker import ForkServer
from cuagent.worker.fork_server import inherited_environment

pytestmark = pytest.mark.slow

LINEAR = "self.a = nn.Linear(32, 16)"


def found(path: Path, fork_server: ForkServer) -> Certification:
    return certify(load_task(path, device="cpu"), fork_server)


def kinds(certification: Certification) -> set[str]:
    return {str(certificate.kind) for certificate in certification.certificates}


@pytest.mark.parametrize(
    ("kind", "forward", "inputs", "more"),
    [
        ("random", "return x + torch.randn_like(x)", "torch.randn(64, 32)", {}),
        ("constant output passes", "return (x * 0).sigmoid()", "torch.randn(64, 32)", {}),
        ("zero output passes", "return x.softmax(-1)", "torch.randn(8, 9000)", {}),
        ("identity passes", "return torch.relu(x)", "torch.rand(64, 32)", {}),
        (
            "input without effect",
            "return x + 0.0001 * y",
            "torch.randn(64, 32), torch.randn(64, 32)",
            {"arguments": "x, y"},
        ),
        (
            "partial computation passes",
            "return ((x - y) ** 2).mean()",
            "torch.rand(512, 4096) * (1 + torch.rand(())), torch.rand(512, 4096)",
            {"arguments": "x, y"},
        ),
        (
            "weight without effect",
            "return self.n(self.a(x).view(64, 4, 4))",
            "torch.randn(64, 32)",
            {"init": f"{LINEAR}; self.n = nn.InstanceNorm1d(4); self.b = nn.Linear(4, 4)"},
        ),
        (
            "dead part",
            "y = self.a(x).tanh(); return x.exp()",
            "torch.randn(64, 32)",
            {"init": LINEAR},
        ),
        (
            "part that changes nothing",
            "return self.a(x).tanh().clamp(-1, 1)",
            "torch.randn(64, 32)",
            {"init": LINEAR},
        ),
        (
            "training mode differs",
            "return self.d(self.a(x))",
            "torch.randn(64, 32)",
            {"init": f"{LINEAR}; self.d = nn.Dropout(0.5)"},
        ),
        (
            "training mode differs",
            "return self.n(self.a(x)) * 3",
            "torch.randn(64, 32) * 4 + 1",
            {"init": f"{LINEAR}; self.n = nn.BatchNorm1d(16)"},
        ),
    ],
)
def test_each_kind_is_found(
    tmp_path: Path,
    fork_server: ForkServer,
    kind: str,
    forward: str,
    inputs: str,
    more: dict[str, str],
) -> None:
    path = write_task(tmp_path / "task.py", forward, inputs, **more)
    assert kind in kinds(found(path, fork_server))


@pytest.mark.parametrize(
    ("family", "forward", "inputs", "init"),
    [
        ("product and more", "return F.gelu(self.a(x))", "torch.randn(64, 32)", LINEAR),
        ("elementwise", "return x.exp() + 1", "torch.randn(64, 32)", "pass"),
        ("reduction", "return x.sum(1)", "torch.randn(64, 32)", "pass"),
        ("scan", "return x.cumsum(1)", "torch.randn(64, 32)", "pass"),
        ("pooling", "return F.max_pool1d(x, 2)", "torch.randn(4, 8, 32)", "pass"),
        (
            "transposed convolution 3D and more",
            "return self.c(x).exp()",
            "torch.randn(2, 4, 6, 6, 6)",
            "self.c = nn.ConvTranspose3d(4, 4, 3)",
        ),
        (
            "depthwise convolution",
            "return self.c(x)",
            "torch.randn(2, 4, 8, 8)",
            "self.c = nn.Conv2d(4, 4, 3, groups=4)",
        ),
        (
            "recurrent network",
            "return self.c(x)[0]",
            "torch.randn(2, 8, 4)",
            "self.c = nn.LSTM(4, 4)",
        ),
    ],
)
def test_an_honest_problem_has_a_family_and_no_degenerate_certificate(
    tmp_path: Path, fork_server: ForkServer, family: str, forward: str, inputs: str, init: str
) -> None:
    path = write_task(tmp_path / "task.py", forward, inputs, init=init)
    certification = found(path, fork_server)
    assert certification.family == family
    assert not certification.degenerate, certification


def test_a_dead_part_names_operator_and_module(tmp_path: Path, fork_server: ForkServer) -> None:
    forward = "y = self.a(x); return x.exp()"
    path = write_task(tmp_path / "task.py", forward, init=LINEAR)
    details = {str(c.kind): c.detail for c in found(path, fork_server).certificates}
    assert details["dead part"] == "addmm in a"


def test_a_reference_that_fails_gives_its_reason(tmp_path: Path, fork_server: ForkServer) -> None:
    path = write_task(tmp_path / "task.py", "return x @ x")
    with pytest.raises(TaskError, match="mat1 and mat2"):
        found(path, fork_server)


def test_certification_survives_json(tmp_path: Path, fork_server: ForkServer) -> None:
    first = found(
        write_task(tmp_path / "task.py", "return torch.relu(x)", "torch.rand(9, 9)"), fork_server
    )
    assert Certification.from_json(first.to_json()).to_json() == first.to_json()


def test_a_process_without_measurements_has_one_queue_to_the_gpu(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    """A machine creates contexts with eight queues several times more slowly."""
    queues = "import os; assert os.environ['CUDA_DEVICE_MAX_CONNECTIONS'] == '1'"
    task = load_task(write_task(tmp_path / "task.py", "return x + 1", init=queues), device="cpu")
    certify(task, fork_server)
    assert precompile(task, ("compile",), fork_server, DeviceLock()) == ["compile"]
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in inherited_environment()
