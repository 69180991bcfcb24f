"""K: the longest sum in one forward of the reference, counted from the operators that ran.

Rounding errors of a sum of K terms grow like sqrt(K) (Ipsen and Zhou, arXiv 1906.10465), so both
gates of the strict rule carry that factor. An operator not known here counts as 1, which makes the
rule stricter; the reference's own error admits it then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_PRODUCTS = {"mm": 0, "bmm": 0, "dot": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""Position of the argument whose last axis is summed over."""
_ROWS = ("softmax", "norm", "cumsum", "cumprod", "logcumsumexp", "scaled_dot_product", "attention")
"""Sums along an axis although the shape stays."""
_SUMS = ("sum", "mean", "var", "std", "prod", "loss", "pool", "logsumexp", "cross_entropy")


def longest_sum(run: Callable[[], Any]) -> int:
    """Call `run` and count."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    longest = 1

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal longest
            result = function(*args, **(kwargs or {}))
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            if tensors:
                name = function.overloadpacket.__name__
                longest = max(longest, _terms(name, args, tensors, result))
            return result

    with Count():
        run()
    return longest


def _terms(name: str, args: Any, tensors: list[Any], result: Any) -> int:
    first = tensors[0]
    if name in _PRODUCTS:
        return args[_PRODUCTS[name]].shape[-1]
    if "convolution" in name:
        weight = args[1]
        kernel = weight[0, 0].numel()
        return kernel * (weight.shape[0] if args[6] else weight.shape[1])
    if any(word in name for word in _ROWS):
        return max(first.shape, default=1)
    if any(word in name for word in _SUMS):
        out = result[0] if isinstance(result, tuple | list) else result
        return max(1, first.numel() // max(1, out.numel()))
    return 1
