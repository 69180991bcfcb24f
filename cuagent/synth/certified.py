"""Check a candidate task by the certificates of `cuagent bench`, which find degenerate answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cuagent.bench.certificates import DEGENERATE, Kind
from cuagent.synth.reasons import Reason, Rejected

if TYPE_CHECKING:
    from torch.nn import Module

    from cuagent.task.reference import Reference

BUDGET_S = 4.0
"""Time limit in seconds of the search for operators without effect."""


def certified(
    reference: Reference, model: Module, labels: Sequence[str], give_way: Callable[[], None]
) -> dict[str, Any]:
    """Check the certificates of `cuagent bench`.

    Returns `family` (operator family), `operators` (number of operators) and `mode` (train or
    eval modes in which the task is usable).
    """
    from cuagent.bench.examine import Examination

    examination = Examination(reference, BUDGET_S, give_way)
    certification = examination.certification()
    mode = "train and eval"
    for certificate in certification.certificates:
        kind, detail = certificate.kind, f"{certificate.kind}: {certificate.detail}"
        if kind in (Kind.IGNORED_INPUT, Kind.IGNORED_WEIGHT):
            raise Rejected(Reason.IGNORED, detail)
        if kind in DEGENERATE:
            raise Rejected(Reason.DEGENERATE, detail)
        if kind is Kind.DEAD and not _is_unused_state(certificate.detail, model):
            raise Rejected(Reason.IDLE, detail)
        if kind is Kind.NO_OP and _is_labelled(certificate.detail, labels):
            raise Rejected(Reason.IDLE, detail)
        if kind is Kind.TRAINING:
            if "random" in certificate.detail or "fails" in certificate.detail:
                raise Rejected(Reason.TRAINING, certificate.detail)
            mode = "eval"
    return {"family": certification.family, "operators": certification.operators, "mode": mode}


def _is_unused_state(detail: str, model: Module) -> bool:
    """Return True if all operators without effect, listed in `detail`, belong to recurrent
    modules.

    Then only the module's last state is unused, which is usual.
    """
    import torch

    modules = dict(model.named_modules())
    paths = [part.partition(" in ")[2] for part in detail.split(", ")]
    return all(isinstance(modules.get(path), torch.nn.RNNBase) for path in paths)


def _is_labelled(detail: str, labels: Sequence[str]) -> bool:
    """Return True if one of the operators listed in `detail` is named by a label of the task.

    Other operators are internal to a function of torch, such as the lower limit of a norm in
    `normalize`.
    """
    from cuagent.synth.labelled import tail

    names = {tail(label).lower() for label in labels}
    return any(part.split()[0].strip("_") in names for part in detail.split(", "))
