"""Name the modules of a running script, and find the module that `--module` selects.

A root is a module that no other live module contains. Its name is that of a top-level variable of
the script which holds it, else its class. Wrappers of libraries (DataParallel, DDP) have no name of
their own: the name means the module inside. `--module` may begin with any variable of the script
that holds a module, also a local one.
"""

from __future__ import annotations

import difflib
import functools
import sys
import weakref
from typing import TYPE_CHECKING

from cuagent.capture.sources import is_library

if TYPE_CHECKING:
    from torch import nn

WRAPPED = (["module"], ["_orig_mod"], ["_fsdp_wrapped_module"])
"""Names of the submodules of a wrapper."""
SHOWN = 3


class Names:
    """Registry of the live modules of a script with their names."""

    def __init__(self) -> None:
        self._live: list[weakref.ref[nn.Module]] = []
        self._found: dict[int, tuple[weakref.ref[nn.Module], str, str]] = {}
        self.elsewhere = 0
        """Number of calls of modules in other threads, which are not intercepted."""
        self._variable: weakref.ref[nn.Module] | None = None

    def add(self, module: nn.Module) -> None:
        """Register a module that was just constructed or called."""
        self._live.append(weakref.ref(module))

    def of(self, module: nn.Module) -> tuple[str, str]:
        """Return (name of the root module, path below it); the path of a root is ""."""
        entry = self._found.get(id(module))
        if entry is None or entry[0]() is not module:
            self._refresh(module)
            entry = self._found[id(module)]
        return entry[1], entry[2]

    def is_target(self, wanted: str, module: nn.Module, *, outermost: bool) -> bool:
        """Return True if `--module wanted` names the module that is called.

        In an outermost call, the script's variables are searched anew.
        """
        if outermost:
            self.of(module)  # named while it lives, for `known`
            found = _held(wanted)
            self._variable = None if found is None else weakref.ref(found)
        if is_wrapper(module):
            return False
        if self._variable is not None and (held := self._variable()) is not None:
            return held is module
        return matches(wanted, *self.of(module))

    def known(self) -> list[str]:
        """Return the full names of all modules that have been named so far.

        Those of a function's variables may have been deleted since.
        """
        return [_joined(root, path) for _, root, path in self._found.values()]

    def refresh(self) -> None:
        """Assign names to all live modules, so that `known` returns all of them."""
        self._refresh(None)

    def _refresh(self, called: nn.Module | None) -> None:
        if called is not None:
            self.add(called)
        live = {id(m): m for ref in self._live if (m := ref()) is not None}
        self._live = [weakref.ref(m) for m in live.values()]
        inner = {
            id(child)
            for m in live.values()
            for child in getattr(m, "_modules", {}).values()
            if child is not None
        }
        taken: dict[str, int] = {}
        for module in live.values():
            if id(module) in inner:
                continue
            if not hasattr(module, "_modules"):  # its constructor has not run
                continue
            name = _variable(module) or type(module).__name__
            taken[name] = taken.get(name, 0) + 1
            root = name if taken[name] == 1 else f"{name}#{taken[name]}"
            for path, part in module.named_modules():
                self._found[id(part)] = (weakref.ref(part), root, _without_wrappers(module, path))


def matches(wanted: str, root: str, path: str) -> bool:
    """Return True if the option `--module wanted` selects the module at `path` below the root
    module `root`.

    `wanted` may contain the root's name or leave it out.
    """
    if wanted in (path, _joined(root, path)):
        return bool(wanted)
    first, _, rest = wanted.partition(".")
    return bool(path) and rest == path and first.isidentifier() and not path.startswith(first)


def suggestions(wanted: str, known: list[str]) -> list[str]:
    """Return up to `SHOWN` known module names that are similar to `wanted`, for an error
    message."""
    near = difflib.get_close_matches(wanted, known, n=SHOWN, cutoff=0.5)
    last = wanted.rpartition(".")[2]
    near += [name for name in known if name.rpartition(".")[2] == last and name not in near]
    return near[:SHOWN]


def _joined(root: str, path: str) -> str:
    return f"{root}.{path}" if path else root


def is_wrapper(module: nn.Module) -> bool:
    """Return True for a wrapper of a library around one module, such as DataParallel."""
    inner = module.__dict__.get("_modules", {})
    return len(inner) == 1 and list(inner) in WRAPPED and _of_library(type(module).__module__)


_of_library = functools.cache(is_library)


def _without_wrappers(root: nn.Module, path: str) -> str:
    """Return the path without the steps from a wrapper to the module inside."""
    kept, module = [], root
    for part in path.split(".") if path else ():
        kept += [] if is_wrapper(module) else [part]
        module = module._modules[part]  # type: ignore[assignment]
    return ".".join(kept)


def _variable(module: nn.Module) -> str | None:
    """Return the name of the script's top-level variable whose value is the module or its wrapper;
    None if there is none."""
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if value is module and not name.startswith("_"):
            return name
    return None


def _held(wanted: str) -> nn.Module | None:
    """Return the module at a path such as `model.layers.0`, where `model` is a variable of the
    script; None if there is none.

    Top-level variables come first, then those of the script's running functions.
    """
    first, *rest = wanted.split(".")
    top = vars(sys.modules["__main__"])
    if (found := _below(top.get(first), rest)) is not None:
        return found
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame, code = caller, caller.f_code
        # Reading `f_locals` copies references, so it is read only where the name is a variable.
        if frame.f_globals is not top or first not in code.co_varnames + code.co_cellvars:
            continue
        if (found := _below(frame.f_locals.get(first), rest)) is not None:
            return found
    return None


def _below(value: object, path: list[str]) -> nn.Module | None:
    """Return the submodule of `value` at a path, inside of wrappers; None if there is none."""
    from torch import nn

    module = _inside(value)
    for part in path:
        module = _inside(module._modules.get(part)) if isinstance(module, nn.Module) else None
    return module if isinstance(module, nn.Module) else None


def _inside(value: object) -> object:
    from torch import nn

    while isinstance(value, nn.Module) and is_wrapper(value):
        (value,) = value._modules.values()
    return value
