"""Certify a benchmark problem before it is optimized: find properties that let a wrong kernel pass
a tolerance of 1e-2, or that make the problem trivial.

Each certificate is found by running the reference (`examine.py`) in a separate trusted process; a
reference that crashes ends only that process.
Not covered: properties that show only on other shapes, or on inputs that `get_inputs` does not
draw.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cuagent.task import Task, TaskError
from cuagent.task.plain import task_to_json
from cuagent.verify.oracle.process import ONE_QUEUE
from cuagent.worker import ForkServer
from cuagent.worker.breaks import receive_giving_way

REQUEST = "certify.json"
TIME_LIMIT_S = 240.0
"""Time limit in seconds of the examination of one problem."""
BUDGET_S = 20.0
"""Time limit in seconds of the search for operators without effect. Operators left at its end are
not tested."""


class Kind(StrEnum):
    """Kind of a certificate. `DEGENERATE` lists the kinds that make a speedup meaningless."""

    RANDOM = "random"
    CONSTANT = "constant output passes"
    ZERO = "zero output passes"
    IDENTITY = "identity passes"
    IGNORED_INPUT = "input without effect"
    PARTIAL = "partial computation passes"
    IGNORED_WEIGHT = "weight without effect"
    DEAD = "dead part"
    NO_OP = "part that changes nothing"
    TRAINING = "training mode differs"


DEGENERATE = (
    Kind.RANDOM,
    Kind.CONSTANT,
    Kind.ZERO,
    Kind.IDENTITY,
    Kind.IGNORED_INPUT,
    Kind.PARTIAL,
)
"""Kinds of certificates that let a kernel pass the tolerance of 1e-2 without the computation."""


@dataclass(frozen=True)
class Certificate:
    """One property of a problem that lets a wrong kernel pass or makes the problem trivial."""

    kind: Kind
    detail: str

    @property
    def degenerate(self) -> bool:
        return self.kind in DEGENERATE


@dataclass(frozen=True)
class Certification:
    """All certificates of one problem, with its operator family and the notes of the
    examination."""

    certificates: tuple[Certificate, ...]
    family: str
    """Operator family of the problem, for instance `convolution and more`."""
    operators: int
    """Number of operators that one call runs, without views, copies and creations of tensors."""
    notes: tuple[str, ...] = ()
    """Parts of the examination that were skipped or cut short, with the reason."""
    seconds: float = 0.0

    @property
    def degenerate(self) -> bool:
        return any(certificate.degenerate for certificate in self.certificates)

    def to_json(self) -> dict[str, Any]:
        listed = [asdict(c) | {"degenerate": c.degenerate} for c in self.certificates]
        return {
            "certificates": listed,
            "family": self.family,
            "operators": self.operators,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Certification:
        listed = tuple(Certificate(Kind(c["kind"]), c["detail"]) for c in data["certificates"])
        return Certification(
            listed, data["family"], data["operators"], tuple(data["notes"]), data["seconds"]
        )


def certify(
    task: Task,
    fork_server: ForkServer,
    budget_s: float = BUDGET_S,
    lock: Path | None = None,
    give_way: Callable[[], None] = lambda: None,
) -> Certification:
    """Find the certificates of a task's reference in a forked process. Raises TaskError,
    ForkServerError.

    `budget_s`: time limit in seconds of the search for dead parts. `lock`: lock file of the device.
    `give_way` is called in the breaks of the forked process (`Breaks`), so that another process can
    time a kernel.
    """
    folder = Path(tempfile.mkdtemp(prefix="certify-", dir=fork_server.folder))
    (folder / REQUEST).write_text(
        json.dumps(
            {"task": task_to_json(task), "budget_s": budget_s, "lock": lock and str(lock.resolve())}
        ),
        encoding="utf-8",
    )
    child = fork_server.fork("cuagent.bench.examine", folder, ONE_QUEUE)
    received, how = None, "its process died"
    try:
        received = receive_giving_way(child.channel, give_way, TIME_LIMIT_S)
    except TimeoutError:
        how = f"not done in {TIME_LIMIT_S:.0f} s"
    finally:
        fork_server.end(child)
        shutil.rmtree(folder, ignore_errors=True)
    if received is None:
        raise TaskError(f"{task.path}: cannot be certified: {how}")
    answer, _ = received
    if "error" in answer:
        raise TaskError(answer["error"])
    return Certification.from_json(answer)
