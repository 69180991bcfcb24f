"""Compose one task by adding one operator call after the other.

A draft consists of the lines of `forward`, the modules, the inputs, and one meta tensor for each
value. Each call is run on meta tensors when it is added, so the installed torch decides if shapes
and dtypes fit. A call that fails does not change the draft.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from cuagent.synth.dimensions import LARGEST_PARAMETER, SMALL, Dimensions
from cuagent.synth.seeds import Domain, Seed
from cuagent.synth.templates import BATCH, Filling, Unfit, Value, size_text

NAMES = ("x", "y", "z", "u", "v", "w", "p", "q", "r", "s")
"""Names of a task's inputs, in order."""
LARGEST_GROWTH = 32
"""Largest number of elements of a value, as a multiple of the number of elements of the first
input."""
LARGEST_FIXED = 1 << 26
"""Largest number of elements of a value whose size does not depend on the batch."""
MOST_DIMENSIONS = 5
RANDOM_SCALE = "3 * torch.rand(()) * "
"""Text of a random factor on an input, for tasks whose output is a mean over the input. Without
this factor the mean of many numbers would be nearly the same for each draw."""


@dataclass
class Draft:
    """A task that is being composed: its inputs, constructor attributes, lines of forward and
    values so far."""

    random: random.Random
    dtype: str = "float32"
    dimensions: Dimensions = SMALL
    inputs: dict[str, str] = field(default_factory=dict)
    """Expression that draws each input in `get_inputs`, by the input's name."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Expression that makes each module or parameter in the constructor, by attribute name."""
    afterwards: list[str] = field(default_factory=list)
    """Statements that the module's constructor executes last."""
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    _made: dict[str, Any] = field(default_factory=dict)
    """Modules and parameters of the task on the meta device, by attribute name."""

    @property
    def last(self) -> Value:
        return self.values[-1]

    def start(self, shape: tuple[int, ...], layout: str) -> None:
        """Add the first input, with the draft's floating-point dtype."""
        self._add_input("input", shape, 0, layout)

    def start_with_indices(self, shape: tuple[int, ...]) -> None:
        """Add a first input of int64 indices. The first call determines the upper bound of the
        indices."""
        self._add_input("index", shape, 2, "contiguous")

    def apply(self, seed: Seed) -> None:
        """Add a call of an operator on the last value. If the operator does not fit, restore the
        draft and raise Unfit."""
        kept = self._state()
        try:
            self._apply(seed)
        except Unfit:
            self._restore(kept)
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            self._restore(kept)
            raise Unfit(str(error)) from error

    def _apply(self, seed: Seed) -> None:
        main = self.last
        if seed.integers != (not main.meta.is_floating_point()):
            raise Unfit("other dtype")
        filling = Filling(self, seed, main, self._within(seed.domain, main))
        text = filling.fill(seed.text)
        if seed.integers:
            bound = filling.drawn["vocabulary"]
            self.inputs[main.name] = re.sub(r"randint\(\d+", f"randint({bound}", self.inputs["x"])
        if seed.text.startswith("nn."):
            text = filling.fill(seed.call.replace("$", f"self.{self._module(text)}"))
        meta = self._evaluate(text)
        self._check(meta)
        if seed.family == "losses" and not meta.dim():
            self._scale_first_input()
        name = f"h{sum(not value.given for value in self.values) + 1}"
        self.lines.append(f"{name} = {text}")
        self.values.append(Value(name, meta))
        self.families.append(seed.family)

    def _scale_first_input(self) -> None:
        """Multiply the first input by a random factor (`RANDOM_SCALE`)."""
        first = next(iter(self.inputs))
        if self.inputs[first].startswith("torch.randn("):
            self.inputs[first] = RANDOM_SCALE + self.inputs[first]

    def _within(self, domain: Domain, main: Value) -> str:
        """Return an expression for the main argument with values inside the operator's domain.

        If the argument is an input of the task, the input is drawn from the domain. Otherwise the
        expression maps the value into the domain.
        """
        if domain is Domain.ANY:
            return main.name
        if main.given and not self.lines:
            text = self.inputs[main.name]
            drawn = text.replace("torch.randn(", "torch.rand(")
            shifts = {Domain.POSITIVE: " + 0.5", Domain.ABOVE_ONE: " + 1.1", Domain.UNIT: ""}
            if domain is not Domain.UNIT and not drawn.endswith(")"):
                raise Unfit("a layout that ends the expression")
            self.inputs[main.name] = drawn + shifts[domain]
            return main.name
        wrapped = {Domain.POSITIVE: "F.softplus", Domain.UNIT: "torch.sigmoid"}
        if domain not in wrapped:
            raise Unfit("no call maps to this domain")
        return f"{wrapped[domain]}({main.name})"

    def _module(self, constructor: str) -> str:
        """Add a module, made by the expression `constructor`, and return its attribute name."""
        import torch

        cls = constructor.partition("(")[0].removeprefix("nn.")
        name = f"{cls.lower()}{len(self.attributes) + 1}"
        with torch.device("meta"):
            module = eval(constructor, self._names())
        if any(p.numel() > LARGEST_PARAMETER for p in module.parameters()):
            raise Unfit("a parameter is too large")
        self._made[name] = module.to(getattr(torch, self.dtype))
        self.attributes[name] = constructor
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            # With its initial statistics the module is nearly the identity in eval mode.
            self.afterwards.append(f"nn.init.normal_(self.{name}.running_mean)")
            self.afterwards.append(f"nn.init.uniform_(self.{name}.running_var, 0.5, 2.0)")
        return name

    def new_parameter(self, kind: str, shape: tuple[int, ...]) -> str:
        """Add a parameter of the given kind and shape; return the expression that reads it."""
        import torch

        if any(size % BATCH == 0 for size in shape):
            raise Unfit("a parameter would grow with the batch")
        if math.prod(shape) > LARGEST_PARAMETER:
            raise Unfit("a parameter is too large")
        scale = (
            f" * {1 / math.sqrt(max(shape[:2])):.2g}" if len(shape) > 1 and max(shape) > 1 else ""
        )
        name = f"{kind}{len(self.attributes) + 1}"
        sizes = ", ".join(map(size_text, shape))
        self.attributes[name] = f"nn.Parameter(torch.randn({sizes}){scale})"
        self._made[name] = torch.empty(shape, device="meta", dtype=getattr(torch, self.dtype))
        return f"self.{name}"

    def new_input(self, kind: str, shape: tuple[int, ...], below: int) -> str:
        """Add an input of the given kind and shape; return its name. `below`: upper bound of
        indices."""
        return self._add_input(kind, shape, below, "contiguous").name

    def like(self, value: Value, broadcast: bool) -> str:
        """Return the name of a value with the shape of `value`: an earlier value or a new input.

        With `broadcast` a new input may have size 1 in one dimension.
        """
        same = [
            v.name
            for v in self.values[:-1]
            if v.shape == value.shape and v.meta.dtype == value.meta.dtype
        ]
        if same and self.random.random() < 0.6:
            return self.random.choice(same)
        shape = list(value.shape)
        if broadcast and len(shape) > 1 and self.random.random() < 0.3:
            shape[self.random.randrange(len(shape))] = 1
        return self.new_input("input", tuple(shape), 0)

    def _add_input(self, kind: str, shape: tuple[int, ...], below: int, layout: str) -> Value:
        import torch

        if len(self.inputs) == len(NAMES):
            raise Unfit("too many inputs")
        name = NAMES[len(self.inputs)]
        dtype = {"index": "int64", "mask": "bool"}.get(kind, self.dtype)
        meta = torch.empty(shape, device="meta", dtype=getattr(torch, dtype))
        self.inputs[name] = _drawn_text(kind, shape, below, layout, self.dtype)
        if layout == "channels_last":
            meta = meta.to(memory_format=torch.channels_last)
        elif layout == "transposed":
            meta = meta.transpose(-1, -2).contiguous().transpose(-1, -2)
        value = Value(name, meta, given=True)
        self.values.insert(len(self.inputs) - 1, value)
        return value

    def _evaluate(self, text: str) -> Any:
        import torch

        names = self._names() | {value.name: value.meta for value in self.values}
        with torch.no_grad():
            return eval(text, names | {"self": SimpleNamespace(**self._made)})

    def _names(self) -> dict[str, Any]:
        import torch

        return {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}

    def _check(self, meta: Any) -> None:
        import torch

        if not isinstance(meta, torch.Tensor) or not meta.numel():
            raise Unfit("no tensor with elements")
        if meta.dim() > MOST_DIMENSIONS:
            raise Unfit("too many dimensions")
        first = self.values[0].meta.numel()
        if (
            meta.numel() > LARGEST_GROWTH * max(first, self.dimensions.few_elements * BATCH)
            or meta.dtype == torch.bool
        ):
            raise Unfit("too large, or truth values")
        if meta.numel() % BATCH and meta.numel() > LARGEST_FIXED:
            raise Unfit("too large at every batch size")
        for size in meta.shape:
            size_text(size)

    def _state(self) -> tuple[Any, ...]:
        return tuple(
            part.copy()
            for part in (
                self.inputs, self.attributes, self.afterwards, self.lines, self.values,
                self.families, self._made,
            )
        )  # fmt: skip

    def _restore(self, kept: tuple[Any, ...]) -> None:
        (
            self.inputs, self.attributes, self.afterwards, self.lines, self.values,
            self.families, self._made,
        ) = kept  # fmt: skip


def _drawn_text(kind: str, shape: tuple[int, ...], below: int, layout: str, dtype: str) -> str:
    """Return the expression that draws an input at random. Indices are smaller than `below`."""
    if layout == "transposed":
        shape = (*shape[:-2], shape[-1], shape[-2])
    sizes = ", ".join(map(size_text, shape))
    of = "" if dtype == "float32" else f", dtype=torch.{dtype}"
    end = {"transposed": ".transpose(-1, -2)", "contiguous": ""}.get(
        layout, f".to(memory_format=torch.{layout})"
    )
    many = f"{sizes}," if len(shape) == 1 else sizes
    match kind:
        case "index":
            return f"torch.randint({size_text(below)}, ({many}))"
        case "mask":
            return f"torch.rand({sizes}) < 0.5"
        case "signs":
            cast = "" if dtype == "float32" else f".to(torch.{dtype})"
            signs = f"torch.randint(2, ({many})) * 2.0 - 1.0"
            return f"({signs}){cast}" if cast else signs
        case "scaled":
            return f"{RANDOM_SCALE}torch.randn({sizes}{of})"
        case "unit":
            return f"torch.rand({sizes}{of})"
        case "positive":
            return f"torch.rand({sizes}{of}) + 0.5"
    return f"torch.randn({sizes}{of}){end}"
