"""Repeat large random fills from memory while a model is constructed again from the same seed.

A verdict constructs the same model once for each kind of weights, in the oracle and in the worker,
and the examination of a task once for each test of hidden state.
torch fills a tensor on the CPU with one thread: 1.2 s for the 138 million weights of VGG16, ten
times as long as a copy. A fill depends only on the state of the random generator and its
arguments, so it is repeated with exactly the same numbers and the same state afterwards.

Covered are the functions of torch.nn.init, `uniform_` and `normal_` of tensors, torch.rand and
torch.randn, if they use the default generator on the CPU and give at least `LEAST` elements. All
other calls run as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from cuagent.task.memory import total

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 1 << 20
"""Least number of elements of a fill that is remembered."""
IN_PLACE = ("uniform_", "normal_")
"""Names that are also methods of tensors, which refuse a parameter while gradients are enabled."""
METHOD = "Tensor."
"""Beginning of the names of these methods."""
INITIALISERS = (
    *IN_PLACE,
    "trunc_normal_",
    "xavier_uniform_",
    "xavier_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "orthogonal_",
    "sparse_",
)
"""Names of the functions of torch.nn.init that draw random numbers."""
MOST_BYTES, MOST_SHARE = 4 << 30, 1 / 32
"""Largest size in bytes of all fills that one process remembers, and its largest share of the
machine's memory."""


class RandomFills:
    """Memory of the fills of the last seeds; those of a new seed replace the oldest ones."""

    def __init__(self, most_bytes: int | None = None) -> None:
        """Create an empty memory; `most_bytes` is by default the smaller of the two limits."""
        if most_bytes is None:
            most_bytes = min(MOST_BYTES, int(MOST_SHARE * total("cpu")))
        self._most_bytes = most_bytes
        self._bytes = 0
        self._known: dict[tuple[Any, ...], tuple[Tensor, Tensor, int]] = {}
        """Result, state of the generator afterwards and its seed, by the state before, name and
        arguments."""

    def remembered(self) -> AbstractContextManager[Any]:
        """Return a context in which a model is constructed."""
        from torch.overrides import TorchFunctionMode

        fills, created = fill_names(), creations()

        class Remembering(TorchFunctionMode):
            def __torch_function__(
                mode, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                given = kwargs or {}
                if (name := fills.get(function)) is not None:
                    return self._fill(name, function, args, given)
                if (name := created.get(function)) is not None and not given:
                    return self._create(name, function, args)
                return function(*args, **given)

        return Remembering()

    def _fill(self, name: str, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return `function(*args, **kwargs)`, which fills the tensor among its arguments."""
        import torch

        tensor: Any = args[0] if args else kwargs.get("tensor")
        if not usual_fill(name, tensor, args, kwargs, LEAST):
            return function(*args, **kwargs)
        numbers = {key: value for key, value in kwargs.items() if key != "tensor"}
        form = tensor.dtype, tuple(tensor.shape)
        key = (name, args[1:], tuple(sorted(numbers.items())), form)

        def repeat(known: Tensor) -> Any:
            with torch.no_grad():
                tensor.copy_(known)
            return tensor

        return self._repeated(key, lambda: function(*args, **kwargs), repeat)

    def _create(self, name: str, function: Any, sizes: Any) -> Any:
        """Return `function(*sizes)`, a new tensor."""
        import torch

        if (shape := usual_shape(sizes, LEAST)) is None:
            return function(*sizes)
        key = (name, tuple(shape), torch.get_default_dtype())
        return self._repeated(key, lambda: function(*sizes), lambda known: known.clone())

    def _repeated(
        self,
        call: tuple[Any, ...],
        compute: Callable[[], Tensor],
        repeat: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Return `compute()`, or `repeat` of its earlier result if the generator has the same
        state as then."""
        import torch

        key = (torch.get_rng_state().numpy().tobytes(), *call)
        if (known := self._known.get(key)) is not None:
            numbers, state, _ = known
            result = repeat(numbers)
            torch.set_rng_state(state)
            return result
        result, seed = compute(), torch.initial_seed()
        if result.device.type == "cpu" and self._has_room(result.nbytes, seed):
            self._bytes += result.nbytes
            self._known[key] = result.detach().clone(), torch.get_rng_state(), seed
        return result

    def _has_room(self, needed: int, seed: int) -> bool:
        """Return True if a fill of `needed` bytes fits; forget fills of other seeds if needed."""
        if needed > self._most_bytes:
            return False
        for key in [key for key, known in self._known.items() if known[-1] != seed]:
            if self._bytes + needed <= self._most_bytes:
                break
            self._bytes -= self._known.pop(key)[0].nbytes
        return self._bytes + needed <= self._most_bytes


def fill_names() -> dict[Any, str]:
    """Return the functions that fill a tensor with random numbers, with their names."""
    import torch

    fills = {getattr(torch.nn.init, name): name for name in INITIALISERS}
    return fills | {getattr(torch.Tensor, name): METHOD + name for name in IN_PLACE}


def creations() -> dict[Any, str]:
    """Return the functions that create a random tensor, each with the method that fills one in the
    same way."""
    import torch

    return {torch.rand: "uniform_", torch.randn: "normal_"}


def usual_fill(name: str, tensor: Any, args: Any, kwargs: dict[str, Any], least: int) -> bool:
    """Return True if a call of the fill `name` uses the default generator on the CPU, and fills a
    dense tensor of at least `least` elements."""
    import torch

    numbers = (value for key, value in kwargs.items() if key != "tensor")
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.numel() >= least
        and tensor.is_contiguous()
        and not (tensor.requires_grad and torch.is_grad_enabled() and name.startswith(METHOD))
        and _plain_values((*args[1:], *numbers))
    )


def usual_shape(sizes: Any, least: int) -> tuple[int, ...] | None:
    """Return the shape for which torch.rand was called; None if it has fewer than `least` elements
    or other arguments than sizes."""
    shape = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    is_usual = all(isinstance(size, int) for size in shape) and math.prod(shape) >= least
    return tuple(shape) if is_usual else None


def _plain_values(values: Iterable[Any]) -> bool:
    """Return True if all values are None, numbers or texts, so that they can be compared."""
    return all(value is None or isinstance(value, int | float | str) for value in values)
