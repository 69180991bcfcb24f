"""Open an exported package: its facts, the kernel's class, the original and its operators.

Travels with an exported or applied kernel, next to `replace.py`.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .boundary import Boundary
from .callform import CallForm, call_form
from .flags import flags_kept, set_flags
from .graphs import static_form
from .reads import ALL, Reads
from .state import Unsuitable
from .verified import by_position, kernel_class, original_class, read_verified


class Package:
    """One exported kernel: its files, the verified calls and the operators.

    A process has one object for each export.
    """

    def __init__(self, folder: Path, reference: Path) -> None:
        self.folder, self.reference = folder, reference
        self.facts = read_verified(folder / "verified.json")
        self.entry: str = self.facts.get("class") or self.facts["entry"]
        """Name of the class of the user's modules."""
        self.shapes: list[Any] = [tuple(forms) for forms in self.facts["shapes"]]
        """Arguments of each verified shape, with a `Form` for each tensor."""
        self.static = tuple(tuple(map(static_form, forms)) for forms in self.shapes)
        self.device: str = self.facts["device"]
        self.autocast: str | None = self.facts.get("autocast")
        self.backward: dict[str, Any] | None = self.facts.get("backward")
        """Entry `backward` of `verified.json`; None if no own backward was verified."""
        self.mode_matters = True
        """False if no verified call of the original reads `training`."""
        self.read: Reads | None = None
        self.kind: Any = None
        """The verified class of the user's modules; None until the original was imported."""
        self.warned: set[str] = set()
        self._boundaries: list[Boundary] = []

    def __deepcopy__(self, memo: object) -> Package:
        return self

    def warn(self, why: str, result: str = "the original module runs, not the kernel") -> None:
        """Warn once for each reason."""
        if why not in self.warned:
            self.warned.add(why)
            warnings.warn(f"{self.entry}: {result}: {why}", RuntimeWarning, stacklevel=5)

    def make_kernel(self) -> nn.Module:
        """Construct the kernel's module. Raises Unsuitable if it cannot be compiled or loaded."""
        try:
            with flags_kept():
                set_flags(self.facts["flags"])
                made = self._made(kernel_class(self.folder))
        except Exception as error:  # code of the kernel's author, which may raise any type
            line = str(error).strip().partition("\n")[0] or type(error).__name__
            raise Unsuitable(f"the kernel cannot be loaded ({line})") from error
        if not isinstance(made, nn.Module) or isinstance(made, torch.jit.ScriptModule):
            raise Unsuitable("its ModelNew is not a plain torch.nn.Module")
        return made.eval()

    def boundaries(self, device: torch.device) -> list[Boundary]:
        """Return the operators for each verified shape; the first call registers them.

        Raises Unsuitable if the original cannot be imported or the calls pass other objects.
        """
        if self._boundaries:
            return self._boundaries
        if self.facts.get("class") and self.facts["call"] is None:
            raise Unsuitable(
                "its recorded calls pass, return or change objects that a package cannot repeat"
            )
        if self.facts.get("class") and (why := other_library(self.facts["call"])):
            raise Unsuitable(why)
        try:
            made = original_class(self.folder, self.reference, self.facts)
        except RuntimeError as error:
            raise Unsuitable(str(error)) from error
        self.kind = made.__bases__[0] if self.facts.get("class") else made
        original, lock = self._made(made).to(device), threading.RLock()
        found = [
            # Gradients were verified for the first shape only, that of the task.
            Boundary(
                *(self.folder, forms, original, self.make_kernel, lock),
                backward=None if number else self.backward,
                flags=self.facts["flags"],
            )
            for number, forms in enumerate(self.shapes)
        ]
        known = [b.original.read for b in found if b.original.read is not None]
        if len(known) == len(found):
            self.read = set().union(*known)
        read = self.read
        self.mode_matters = read is None or any(n in ("training", ALL) for _, n in read)
        self._boundaries = found
        return found

    def call_of(self, module: nn.Module) -> CallForm | None:
        """Return the form of the calls of a user's module; None if the kernel takes the module's
        own arguments. Raises Unsuitable."""
        if not self.facts.get("class"):
            return None
        return call_form(self.facts["call"], module, self.kind)

    def inputs(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return the arguments of a call by position; None if one has no position.

        For a kernel that takes the module's own arguments.
        """
        args, named = by_position(self.facts["names"], args, named)
        return None if named else args

    def _made(self, make: Any) -> Any:
        """Call `make` with the verified constructor arguments and default dtype.

        The random state of the process does not change.
        """
        args, named = self.facts["init"]
        dtype = torch.get_default_dtype()
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with torch.random.fork_rng(devices=devices):
            torch.set_default_dtype(getattr(torch, self.facts["default_dtype"]))
            try:
                return make(*args, **named)
            finally:
                torch.set_default_dtype(dtype)


def other_library(call: dict[str, Any]) -> str:
    """Return which library has another version than in the capture, as a message, or ""."""
    for name, version in call.get("libraries", {}).items():
        try:
            found = getattr(importlib.import_module(name), "__version__", "no version")
        except ImportError:
            return f"{name} is not installed; it was verified with {name} {version}"
        if found != version:
            return f"it was verified with {name} {version}; found {found}"
    return ""
