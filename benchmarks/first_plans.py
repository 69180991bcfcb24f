"""Print the contents of the expert's first candidate for each problem of a folder, without a GPU.

    python benchmarks/first_plans.py FOLDER [--match WORD] [--calls]

FOLDER contains problems in the format of KernelBench, in folders by level or directly. Each module
is captured on the CPU with tensors whose memory is never written, and a candidate is planned for an
H200 under torch's default settings. The program prints for each problem the numbers of kernels by
family (or `nothing`), and the heavy calls that the candidate leaves to the library (products,
convolutions, attention, recurrences); then totals by folder. Nothing is timed. Packages that the
problems import must be installed (KernelBench's level 3 needs einops).
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuagent.expert import candidate as candidates
from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

H200 = Target("cuda", (9, 0), 132, tf32=False, tf32_convolutions=True)
LIMIT_S = 120
"""Limit of the processor time in seconds for planning one problem."""
WRITTEN = 4096
"""Largest number of elements of a tensor that an in-place function fills."""
FILLS = {"uniform_", "normal_", "fill_", "zero_", "copy_", "trunc_normal_", "bernoulli_", "erfinv_"}
FILLS |= {"mul_", "add_", "clamp_"}
"""Names of the in-place functions with which modules and `torch.nn.init` fill new tensors."""
HEAVY = re.compile(
    r"F\.(linear|conv\w+|scaled_dot_product_attention)\(|torch\.(matmul|mm|bmm|addmm)\(|"
    r"torch\.ops\.aten\.(\w*conv\w*|\w*mm|\w*matmul|einsum|lstm|gru|rnn\w*|cudnn\w+|"
    r"scaled_dot_product_attention|max_pool\w*|topk|sort|cum\w+)\b"
)


@dataclass(frozen=True)
class Plan:
    """Contents of an expert's candidate: number of kernels by family, and number of library calls
    by name."""

    kernels: Counter[str]
    library: Counter[str]
    error: str = ""

    @property
    def kind(self) -> str:
        """Class of the plan: `error`, `nothing` (no kernel), `kernels and library` or `kernels`."""
        if self.error:
            return "error"
        if not self.kernels:
            return "nothing"
        return "kernels and library" if any(map(HEAVY.match, self.library)) else "kernels"


def main() -> None:
    """Plan each problem, print a line for it, and print the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="", help="only files whose name contains this")
    parser.add_argument("--calls", action="store_true", help="all calls of the library, by name")
    given = parser.parse_args()
    paths = sorted(given.folder.rglob("*.py"), key=lambda path: (path.parent, number_of(path)))
    totals: dict[str, Counter[str]] = {}
    for path in paths:
        if given.match not in str(path):
            continue
        found = plan(path)
        totals.setdefault(path.parent.name, Counter())[found.kind] += 1
        kernels = ", ".join(f"{n} {name}" for name, n in found.kernels.items()) or "nothing"
        names = [name for name in found.library if given.calls or HEAVY.match(name)]
        calls = ", ".join(f"{found.library[name]} {name.rstrip('(')}" for name in names)
        text = found.error or kernels + (f"; library: {calls}" if calls else "")
        print(f"{path.parent.name:8} {path.stem[:44]:44} {text}", flush=True)
    for name, counts in totals.items():
        print(
            f"{name}: {counts.total()} problems; "
            + ", ".join(f"{n} {k}" for k, n in counts.items())
        )


def plan(path: Path) -> Plan:
    """Return the contents of the expert's first candidate for a problem file, without running
    it."""
    found: list[Any] = []
    try:
        with limit(LIMIT_S), observed_plans(found):
            with unwritten_tensors(), traced_as_on_gpu():
                subject = open_subject(load_task(f"{path}:Model", device="cpu"))
            made = make_candidate(replace(subject, target=H200), Options())
    except Exception as error:  # noqa: BLE001 - the module is foreign code
        return Plan(
            Counter(), Counter(), f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
        )
    if made is None:
        # The steps of the last plan still say which calls remain.
        return Plan(Counter(), _calls(found[-1].steps if found else ()))
    steps, calls = found[-1].steps, found[-1].calls
    return Plan(Counter(family_of(steps[k]) for k in calls), _calls(steps))


def family_of(step: Any) -> str:
    return str(getattr(step, "family", type(step).__name__.removesuffix("Step").lower()))


def _calls(steps: Any) -> Counter[str]:
    texts = (step.op for step in steps if getattr(step, "kind", "") == "library")
    return Counter(match[0] for text in texts if (match := re.match(r"[\w.]+\(?", text)))


@contextmanager
def observed_plans(found: list[Any]) -> Iterator[None]:
    """Append each plan that the expert makes in this context to `found`."""
    planned: Callable[..., Any] = candidates.plan_method

    def record(*args: Any) -> Any:
        found.append(planned(*args))
        return found[-1]

    candidates.plan_method = record
    try:
        yield
    finally:
        candidates.plan_method = planned


@contextmanager
def unwritten_tensors() -> Iterator[None]:
    """Leave the elements of large tensors that are created in this context unwritten.

    The operating system provides memory when it is first written, so modules of any size fit.
    Fake tensors do not serve: a module may read values in its constructor, keep tensors that are
    not parameters, or be captured by `torch.export` under a second fake mode.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    creates = {
        torch.rand: torch.empty,
        torch.randn: torch.empty,
        torch.ones: torch.zeros,
        torch.full: lambda size, _, **options: torch.zeros(size, **options),
    }
    likes = {torch.rand_like, torch.randn_like, torch.ones_like, torch.zeros_like}

    class Unwritten(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            first, options = args[0] if args else None, kwargs or {}
            if torch.compiler.is_exporting():
                return function(*args, **options)
            if function in likes:
                return torch.empty_like(first, **options)
            fills = getattr(function, "__name__", "") in FILLS
            if fills and isinstance(first, torch.Tensor) and first.numel() > WRITTEN:
                return first
            return creates.get(function, function)(*args, **options)

    with Unwritten():
        yield


@contextmanager
def traced_as_on_gpu() -> Iterator[None]:
    """Trace convolutions with contiguous results in this context, as traces on a GPU have them.

    Traces on a CPU have results in the layout of the argument, and other plans.
    """
    import torch

    name = "_conv_determine_backend_memory_format"
    original = getattr(torch._C, name)
    setattr(torch._C, name, lambda *_: torch.contiguous_format)
    try:
        yield
    finally:
        setattr(torch._C, name, original)


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError inside this context after `seconds` of processor time."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not planned after {seconds} s of processor time")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def number_of(path: Path) -> tuple[int, str]:
    match = re.match(r"\d+", path.name)
    return int(match[0]) if match else 0, path.name


if __name__ == "__main__":
    sys.exit(main())
