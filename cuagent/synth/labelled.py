"""Check a task's operator labels against the operators that really run, independently of the syntax
tree.

`traced` records the outermost calls of torch functions and modules in one forward call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from cuagent.worker.operators import names_in

IGNORED = names_in(
    """
    __get__ __set__ __getitem__ __setitem__ size dim numel item tolist __len__ __iter__ shape stride
    is_contiguous boolean_dispatch __bool__ __int__ __index__ device dtype type is_floating_point
    """
)
"""Names of torch functions that compute nothing and therefore have no label."""
DUNDERS = {
    "iadd": "add", "radd": "add", "isub": "sub", "rsub": "sub", "imul": "mul", "rmul": "mul",
    "truediv": "div", "itruediv": "div", "rtruediv": "div", "rdiv": "div", "invert": "bitwise_not",
    "rmatmul": "matmul", "rpow": "pow", "and": "bitwise_and", "or": "bitwise_or",
}  # fmt: skip


def traced(model: Any, inputs: Sequence[Any]) -> list[str]:
    """Return the names of the torch functions and modules that one forward call runs, without calls
    inside them."""
    import torch
    from torch.overrides import TorchFunctionMode

    found: list[str] = []
    depth = 0

    class Names(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not depth and func.__name__ not in IGNORED:
                found.append(func.__name__)
            return func(*args, **(kwargs or {}))

    def enter(module: Any, _: Any) -> None:
        nonlocal depth
        if not depth:
            found.append(type(module).__name__)
        depth += 1

    def leave(*_: Any) -> None:
        nonlocal depth
        depth -= 1

    handles = []
    for module in model.modules():
        if module is not model:
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        with torch.no_grad(), Names():
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def differences(
    labels: Sequence[str], run: Sequence[str], exact: bool = True, repeated: bool = False
) -> str:
    """Return the differences between `labels` and the traced names `run` as text; "" if there are
    none.

    `exact` False: operators that run without a label are accepted. `repeated` True: numbers of
    calls are not compared, because a call in a loop has one label but runs several times.
    """
    declared = Counter(tail(label) for label in labels)
    ran = Counter(tail(name) for name in run)
    if repeated:
        declared, ran = Counter(set(declared)), Counter(set(ran))
    missing, extra = declared - ran, ran - declared
    if not exact:
        missing, extra = Counter(set(declared) - set(ran)), Counter()
    parts = [f"declared, not run: {', '.join(sorted(missing))}"] if missing else []
    parts += [f"run, not declared: {', '.join(sorted(extra))}"] if extra else []
    return "; ".join(parts)


def tail(label: str) -> str:
    """Return an operator's name without its module, in one spelling for all its variants.

    For instance `add` for `torch.add`, `add_` and `__iadd__`.
    """
    name = label.rpartition(".")[2].strip("_")
    name = name.removeprefix("linalg_")
    return DUNDERS.get(name, name)
