"""Repeat large random fills from memory while a model is constructed again from the same seed.

A verdict constructs the same model once for each kind of weights, in the oracle and in the worker.
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
    """Memory of the fills of one seed; the fills of another seed replace them."""

    def __init__(self, most_bytes: int | None = None) -> None:
        """Create an empty memory; `most_bytes` is by default the smaller of the two limits."""
        if most_bytes is None:
            most_bytes = min(MOST_BYTES, int(MOST_SHARE * total("cpu")))
        self._most_bytes = most_bytes
        self._bytes = 0
        self._seed: int | None = None
        self._known: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}
        """Result and state of the generator afterwards, by the state before, name and arguments."""

    def remembered(self) -> AbstractContextManager[Any]:
        """Return a context in which a model is constructed."""
        import torch
        from torch.overrides import TorchFunctionMode

        fills = {getattr(torch.nn.init, name): name for name in INITIALISERS}
        fills |= {torch.Tensor.uniform_: "uniform_", torch.Tensor.normal_: "normal_"}
        creations = {torch.rand: "rand", torch.randn: "randn"}

        class Remembering(TorchFunctionMode):
            def __torch_function__(
                mode, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                given = kwargs or {}
                if (name := fills.get(function)) is not None:
                    return self._fill(name, function, args, given)
                if (name := creations.get(function)) is not None and not given:
                    return self._create(name, function, args)
                return function(*args, **given)

        return Remembering()

    def _fill(self, name: str, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return `function(*args, **kwargs)`, which fills the tensor among its arguments."""
        import torch

        tensor: Any = args[0] if args else kwargs.get("tensor")
        numbers = {key: value for key, value in kwargs.items() if key != "tensor"}
        usual = (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.device.type == "cpu"
            and tensor.numel() >= LEAST
            and tensor.is_contiguous()
            and not (tensor.requires_grad and torch.is_grad_enabled() and name in IN_PLACE)
            and _plain_values((*args[1:], *numbers.values()))
        )
        if not usual:
            return function(*args, **kwargs)
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

        shape = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
        if not all(isinstance(size, int) for size in shape) or math.prod(shape) < LEAST:
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

        if self._seed != (seed := torch.initial_seed()):
            self._known.clear()
            self._bytes, self._seed = 0, seed
        key = (torch.get_rng_state().numpy().tobytes(), *call)
        if (known := self._known.get(key)) is not None:
            numbers, state = known
            result = repeat(numbers)
            torch.set_rng_state(state)
            return result
        result = compute()
        if result.device.type == "cpu" and self._bytes + result.nbytes <= self._most_bytes:
            self._bytes += result.nbytes
            self._known[key] = result.detach().clone(), torch.get_rng_state()
        return result


def _plain_values(values: Iterable[Any]) -> bool:
    """Return True if all values are None, numbers or texts, so that they can be compared."""
    return all(value is None or isinstance(value, int | float | str) for value in values)
