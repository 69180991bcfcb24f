"""Read and set torch's global settings ("flags") that change the arithmetic of a module.

`read_flags` returns them as plain JSON values, and `set_flags` sets those that differ. `flags_set`
does so around a block and restores the former values, also if the block raises; `flags_kept` only
restores them. `flags_test` prepares a test that takes a microsecond.

torch has two interfaces for the precision of fp32 products: newer settings for each operation, such
as `cuda.matmul` (`fp32_precision`, torch 2.9 and newer), here called leaves, and older switches
(`allow_tf32`, `get_float32_matmul_precision`). Reading an old switch raises if a leaf was set to
disagree with it, and torch.compile's autotuning reads it. So an old switch is written first where
its value is known, and a leaf only where it still differs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

LEAVES = {
    "matmul": ("cuda", "matmul"),
    "conv": ("cuda", "conv"),
    "rnn": ("cuda", "rnn"),
    "cpu_matmul": ("mkldnn", "matmul"),
    "cpu_conv": ("mkldnn", "conv"),
    "cpu_rnn": ("mkldnn", "rnn"),
}
"""Backend and operation in torch of the precision setting, by kind of fp32 product.

Such a setting is `ieee`, `tf32`, `bf16`, or `none`, which means ieee.
"""
ON_CPU = ("cpu_matmul", "cpu_conv", "cpu_rnn")
OLD_SWITCHES = ("float32_matmul_precision", "cudnn_allow_tf32")
REDUCTIONS = {
    "fp16_reduction": "allow_fp16_reduced_precision_reduction",
    "bf16_reduction": "allow_bf16_reduced_precision_reduction",
}
"""Name in torch.backends.cuda.matmul of each flag that permits rounding of partial sums."""
ARITHMETIC = (*OLD_SWITCHES, *LEAVES, *REDUCTIONS, "fp16_accumulation")
"""Names of the flags that change the results of products."""
AROUND = (*ARITHMETIC, "cudnn_benchmark")
"""Names of the flags that `flags_set` sets around a block."""


def read_flags() -> dict[str, Any]:
    """Return torch's current flags by name; None for an old switch that torch refuses to read."""
    import torch

    backends = torch.backends
    found: dict[str, Any] = {
        "float32_matmul_precision": _or_none(torch.get_float32_matmul_precision),
        "cudnn_allow_tf32": _or_none(lambda: backends.cudnn.allow_tf32),
    }
    found |= {name: _leaf(name) for name in LEAVES}
    found |= {name: _reduction(name) for name in REDUCTIONS}
    found["fp16_accumulation"] = bool(getattr(backends.cuda.matmul, "allow_fp16_accumulation", 0))
    found["default_dtype"] = str(torch.get_default_dtype()).removeprefix("torch.")
    found["cudnn_benchmark"] = backends.cudnn.benchmark
    found["cudnn_deterministic"] = backends.cudnn.deterministic
    found["deterministic"] = _deterministic()
    return found


def set_flags(wanted: Mapping[str, Any], *, exact: bool = False) -> None:
    """Set those flags that differ from `wanted`; flags that are not in `wanted` stay as they are.

    `none` and `ieee` have the same effect; one replaces the other only if `exact`.
    """
    import torch

    backends = torch.backends
    changed = [n for n in LEAVES if exact and n in wanted and wanted[n] != _leaf(n)]
    precision, cudnn = (wanted.get(name) for name in OLD_SWITCHES)
    if precision is not None and precision != _or_none(torch.get_float32_matmul_precision):
        torch.set_float32_matmul_precision(precision)
    if cudnn is not None and cudnn != _or_none(lambda: backends.cudnn.allow_tf32):
        backends.cudnn.allow_tf32 = cudnn
    for name in LEAVES:
        if name in wanted:
            _set_leaf(name, wanted[name], exact=exact, again=name in changed)
    for name, attribute in REDUCTIONS.items():
        now = _reduction(name)
        parts = list(wanted.get(name, now))[: len(now)]
        if parts != now:
            setattr(backends.cuda.matmul, attribute, tuple(parts) if len(parts) > 1 else parts[0])
    matmul = backends.cuda.matmul
    accumulation = wanted.get("fp16_accumulation")
    if accumulation is not None and accumulation != getattr(matmul, "allow_fp16_accumulation", 0):
        matmul.allow_fp16_accumulation = accumulation
    dtype = getattr(torch, wanted.get("default_dtype", ""), None)
    if dtype is not None and dtype is not torch.get_default_dtype():
        torch.set_default_dtype(dtype)
    for name in ("benchmark", "deterministic"):
        value = wanted.get(f"cudnn_{name}")
        if value is not None and value != getattr(backends.cudnn, name):
            setattr(backends.cudnn, name, value)
    if (mode := wanted.get("deterministic")) is not None and mode != _deterministic():
        torch.use_deterministic_algorithms(mode != "off", warn_only=mode == "warn")


def flags_test(wanted: Mapping[str, Any]) -> Callable[[], bool]:
    """Return a fast function that returns True if torch computes products as `wanted` says.

    It compares the precisions in LEAVES, the flags in REDUCTIONS and `cudnn_benchmark`, as far as
    `wanted` has them.
    """
    import torch

    reads: list[tuple[Callable[[], Any], tuple[Any, ...]]] = []
    read_leaf = getattr(torch._C, "_get_fp32_precision_getter", None)
    for name, place in LEAVES.items():
        if name in wanted:
            read = partial(_leaf, name) if read_leaf is None else partial(read_leaf, *place)
            value = _effect(wanted[name])
            if read_leaf is None and name in ON_CPU and value != "bf16":
                value = "ieee"
            reads.append((read, ("ieee", "none") if value == "ieee" else (value,)))
    for name, attribute in REDUCTIONS.items():
        if name in wanted:
            parts = tuple(wanted[name])
            reads.append((getattr(torch._C, f"_get_cublas_{attribute}"), (parts, parts[0])))

    if "cudnn_benchmark" in wanted:
        reads.append((torch._C._get_cudnn_benchmark, (wanted["cudnn_benchmark"],)))

    def same() -> bool:
        for read, values in reads:  # noqa: SIM110  a generator takes twice as long
            if read() not in values:
                return False
        return True

    return same


@contextmanager
def flags_set(wanted: Mapping[str, Any]) -> Iterator[None]:
    """Set the flags named in `AROUND` to their values in `wanted` for the block, then restore them.

    Nothing is done if none differs. The flags belong to the process, so other threads see them
    during the block.
    """
    if flags_test(wanted)():
        yield
        return
    with flags_kept(AROUND):
        set_flags({name: value for name, value in wanted.items() if name in AROUND})
        yield


@contextmanager
def flags_kept(names: Collection[str] = ()) -> Iterator[None]:
    """Restore the flags of `names`, or all flags if it is empty, after a block that may set
    flags."""
    before = {name: value for name, value in read_flags().items() if not names or name in names}
    allowed = None
    if OLD_SWITCHES[0] in before and before[OLD_SWITCHES[0]] is None:
        allowed = _matmul_allow_tf32()
    try:
        yield
    finally:
        # `set_flags` leaves a switch that could not be read. This one has a second name, which may
        # be readable, and it stays so only if it is written before the leaves.
        if allowed is not None and allowed != _matmul_allow_tf32():
            import torch

            torch.backends.cuda.matmul.allow_tf32 = allowed
        set_flags(before, exact=True)


def _or_none(read: Callable[[], Any]) -> Any:
    """Return the value of an old switch of torch.

    It is None if torch refuses to read the switch, because newer settings disagree with it.
    """
    try:
        return read()
    except RuntimeError:
        return None


def _matmul_allow_tf32() -> bool | None:
    """Return the older switch of torch for TF32 in matrix products; None if torch refuses to read
    it."""
    import torch

    found: bool | None = _or_none(lambda: torch.backends.cuda.matmul.allow_tf32)
    return found


def _has_leaves() -> bool:
    import torch

    return hasattr(torch._C, "_get_fp32_precision_getter")


def _effect(value: str) -> str:
    return "ieee" if value == "none" else value


def _leaf(name: str) -> str:
    """Return torch's setting for one kind of fp32 product: `ieee`, `tf32`, `bf16` or `none`."""
    import torch

    if _has_leaves():
        value: str = torch._C._get_fp32_precision_getter(*LEAVES[name])
        return value
    if name == "matmul":
        return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    if name in ("conv", "rnn"):
        return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    # Before torch 2.9 only the old switch changes products on a CPU.
    medium = name == "cpu_matmul" and torch.get_float32_matmul_precision() == "medium"
    return "bf16" if medium else "ieee"


def _set_leaf(name: str, value: str, *, exact: bool, again: bool) -> None:
    """Set torch's precision for one kind of fp32 product if it differs.

    With `again` it is also set if an old switch just gave it this value.
    """
    import torch

    now = _leaf(name)
    same = now == value if exact else _effect(now) == _effect(value)
    if same and not again:
        return
    if _has_leaves():
        write = torch._C._set_fp32_precision_setter
        # `none` lets a leaf follow the setting above all leaves again, from which `value` may have
        # come.
        write(*LEAVES[name], "none")
        if _leaf(name) != value:
            write(*LEAVES[name], value)
    elif _effect(now) == _effect(value):
        return
    elif name == "matmul":
        torch.backends.cuda.matmul.allow_tf32 = value == "tf32"
    elif name in ("conv", "rnn"):
        torch.backends.cudnn.allow_tf32 = value == "tf32"
    # On a CPU the old switch decides, which was written before.


def _reduction(name: str) -> list[bool]:
    """Return [True] if half-precision products may round their partial sums, else [False].

    With newer torch a second item says the same for the sums of split K.
    """
    import torch

    found = getattr(torch._C, f"_get_cublas_{REDUCTIONS[name]}")()
    return list(found) if isinstance(found, tuple) else [found]


def _deterministic() -> str:
    """Return the mode of torch.use_deterministic_algorithms: `off`, `warn` or `error`."""
    import torch

    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "error"
