"""Leave out the large random fills of a constructor, or draw them on the model's GPU instead.

torch fills a tensor on the CPU with one thread: 6 to 9 s for the billion weights of a square linear
layer of 32,768, which are then copied to the GPU. A process whose weights are replaced right after
the construction needs no numbers, and one that needs any numbers of the same distribution can draw
them on the GPU in milliseconds.

A fill is put off if it has at least `LEAST` elements or follows one that was put off. If the
constructor does anything with such a tensor but to read its form or to fill it again, all fills so
far are made at once, in order, from the generator's state at the first one; so everything is as if
none had been put off. If it draws other random numbers, seeds the generator, keeps such a tensor
outside of the state dict or a part of it as a parameter, `finish` returns False, and the caller
constructs the model again in the usual way.

Only for trusted processes that run the reference. A tensor that C code fills or reads without
torch's functions is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode

from cuagent.task.random_fills import LEAST, creations, fill_names, usual_fill, usual_shape

if TYPE_CHECKING:
    from torch import Tensor, nn

OVERWRITING = ("zeros_", "ones_", "constant_", "zero_", "fill_")
"""Names of functions that fill a tensor with one number."""
FORM = (
    "data",
    "shape",
    "dtype",
    "device",
    "ndim",
    "layout",
    "requires_grad",
    "grad_fn",
    "grad",
    "is_leaf",
)
FORM_METHODS = ("dim", "size", "numel", "nelement", "element_size", "stride", "__len__")
FORM_TESTS = ("is_contiguous", "is_floating_point", "is_complex", "requires_grad_")
"""Names of the attributes and methods of tensors that do not read their numbers. `data` is another
tensor of the same memory, whose uses count too."""


@dataclass(frozen=True)
class _Fill:
    """A fill that was put off. `make` fills the given tensor of the same form."""

    tensor: Tensor
    make: Callable[[Tensor], object]


class DeferredFills(TorchFunctionMode):
    """Context of one construction, in which large random fills are put off."""

    def __init__(self) -> None:
        """Create the context."""
        import torch

        super().__init__()
        self.was_used = False
        """True if any fill was put off."""
        self._fills: list[_Fill] = []
        """Fills that are not made yet, in the order of the calls."""
        self._places: set[int] = set()
        """Addresses of their tensors."""
        self._state = torch.empty(0)
        """State of the random generator at the first of them."""
        self._mark = torch.empty(0)
        """State of the random generator while fills are put off."""
        self._is_exact = True
        """False if random numbers were drawn from a state that the fills would have changed."""
        self._names, self._creations = fill_names(), creations()
        tensor = torch.Tensor
        self._overwriting = {getattr(torch.nn.init, name, None) for name in OVERWRITING}
        self._overwriting |= {tensor.zero_, tensor.fill_}
        self._harmless = {getattr(tensor, name) for name in (*FORM_METHODS, *FORM_TESTS)}
        self._harmless |= {getattr(tensor, name).__get__ for name in FORM}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Put the call off if it is a large random fill; otherwise make it."""
        given = kwargs or {}
        if (name := self._names.get(function)) is not None:
            if self._may_put_off(tensor := _filled(args, given), args, given, name):
                return self._put_off(tensor, function, args, given)
        elif (drawn := self._creations.get(function)) is not None and not given:
            if (shape := usual_shape(args, self._least)) is not None:
                return self._created(function, args, shape, drawn)
        elif function in self._overwriting:
            tensor = _filled(args, given)
            if self._uses(tensor) and _is_whole(tensor):
                return self._put_off(tensor, function, args, given)
        if self._fills and function not in self._harmless and self._uses((args, given)):
            self._make_all()
        return function(*args, **given)

    def finish(self, model: nn.Module, device: str, *, draw: bool) -> bool:
        """Give the tensors that were put off memory on `device`; return False if the model must be
        constructed again in the usual way.

        With `draw` they are filled there from torch's generator of that device; otherwise their
        numbers are undefined. Call it outside the context.
        """
        import torch

        self._note_state()
        if not self._is_exact:
            return False
        if self._fills:
            torch.set_rng_state(self._state)
        fills = {_address(fill.tensor): fill.make for fill in self._fills}
        shapes = {(_address(fill.tensor), fill.tensor.shape) for fill in self._fills}
        self._fills.clear()  # these tensors count as other users of the memory below
        owners: dict[int, dict[int, Tensor]] = {place: {} for place in fills}
        for tensor in _saved(model) if fills else ():
            if (owned := owners.get(_address(tensor))) is not None:
                owned[id(tensor)] = tensor
        if not all(map(_are_all_users, owners.values())) or (fills and not _loads_as_usual(model)):
            return False
        for place, owned in owners.items():
            # Parts of the memory, and other views of it, would need the same part of the new one.
            forms = {tensor.shape for tensor in owned.values()}
            forms |= {shape for at, shape in shapes if at == place}
            if len(forms) > 1 or not all(map(_is_whole, owned.values())):
                return False
        for place, make in fills.items():
            first, *others = owners[place].values()
            new = torch.empty_like(first, device=device, requires_grad=False)
            if draw:
                with torch.no_grad():
                    make(new)
            for tensor in (first, *others):
                tensor.data = new
        return True

    @property
    def _least(self) -> int:
        """Least number of elements of a fill that is put off."""
        return 1 if self._fills else LEAST

    def _may_put_off(self, tensor: Any, args: Any, given: dict[str, Any], name: str) -> bool:
        return usual_fill(name, tensor, args, given, self._least) and _is_whole(tensor)

    def _put_off(self, tensor: Tensor, function: Any, args: Any, given: dict[str, Any]) -> Tensor:
        by_name = {"tensor": None} if "tensor" in given else {}
        numbers, named = args[1:], given | by_name  # without the tensor, whose users count

        def make(target: Tensor) -> object:
            if by_name:
                return function(**named | {"tensor": target})
            return function(target, *numbers, **named)

        self._add(_Fill(tensor, make))
        return tensor

    def _created(self, function: Any, args: Any, shape: Any, drawn: str) -> Tensor:
        import torch

        tensor = torch.empty(shape)
        if tensor.device.type != "cpu":  # the user's default device
            created: Tensor = function(*args)
            return created
        self._add(_Fill(tensor, lambda target: getattr(target, drawn)()))
        return tensor

    def _add(self, fill: _Fill) -> None:
        import torch

        if not self._fills:
            self._state = torch.get_rng_state()
            # A state that no constructor sets, so that a new seed shows even if it is the old one.
            torch.rand(1, device="cpu")
            self._mark = torch.get_rng_state()
        self._note_state()
        self.was_used = True
        self._fills.append(fill)
        self._places.add(_address(fill.tensor))

    def _note_state(self) -> None:
        """Note if random numbers were drawn, or the generator was seeded, since the first fill that
        was put off."""
        import torch

        if self._fills and not torch.equal(torch.get_rng_state(), self._mark):
            self._is_exact = False

    def _uses(self, value: Any) -> bool:
        """Return True if a tensor in `value` shares memory with one that was put off."""
        import torch

        if isinstance(value, torch.Tensor):
            return value.device.type == "cpu" and _address(value) in self._places
        if isinstance(value, dict):
            return any(map(self._uses, value.values()))
        return isinstance(value, list | tuple) and any(map(self._uses, value))

    def _make_all(self) -> None:
        """Make all fills that were put off, with the numbers that they would have had."""
        import torch

        self._note_state()
        fills, self._fills = self._fills, []
        self._places.clear()
        torch.set_rng_state(self._state)
        with torch.no_grad():
            for fill in fills:
                fill.make(fill.tensor)


def _filled(args: Any, given: dict[str, Any]) -> Any:
    """Return the tensor that a call of a filling function fills."""
    return args[0] if args else given.get("tensor")


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; 0 if it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse, or without memory
        return 0


def _is_whole(tensor: Tensor) -> bool:
    """Return True if the tensor is dense and no other numbers are in its memory."""
    size = tensor.numel() * tensor.element_size()
    return size > 0 and tensor.is_contiguous() and tensor.untyped_storage().nbytes() == size


def _are_all_users(tensors: dict[int, Tensor]) -> bool:
    """Return True if there are tensors, which share memory, and no other tensor uses it."""
    import torch

    if not tensors:
        return False
    storage = next(iter(tensors.values())).untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) == len(tensors) + 1


def _saved(model: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of the model's state dict."""
    names = frozenset(model.state_dict())  # without its tensors, which share the memory
    for pairs in (model.named_parameters, model.named_buffers):
        yield from (tensor for name, tensor in pairs(remove_duplicate=False) if name in names)


def _loads_as_usual(model: nn.Module) -> bool:
    """Return True if torch's own code loads a state dict into all modules."""
    import torch

    usual = torch.nn.Module.load_state_dict
    return type(model).load_state_dict is usual and all(
        type(module)._load_from_state_dict.__module__.startswith("torch.")
        for module in model.modules()
    )
