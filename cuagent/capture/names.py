"""Name the modules of a running script, and find the module that `--module` selects.

A root is a module that no other live module contains. Its name is that of the script's top-level
variable with this value, or else its class. The names of wrappers (torch.compile, DDP) are left
out.
"""

from __future__ import annotations

import difflib
import sys
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

WRAPPERS = ("_orig_mod", "module")
SHOWN = 3


class Names:
    """Registry of the live modules of a script with their names."""

    def __init__(self) -> None:
        self._live: list[weakref.ref[nn.Module]] = []
        self._found: dict[int, tuple[weakref.ref[nn.Module], str, str]] = {}

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

    def known(self) -> list[str]:
        """Return the full names of all modules that have been named so far."""
        return [_joined(root, path) for ref, root, path in self._found.values() if ref()]

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
                short = ".".join(p for n, p in enumerate(path.split(".")) if not _wraps(p, n))
                self._found[id(part)] = (weakref.ref(part), root, short)


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


def _wraps(part: str, position: int) -> bool:
    return part == WRAPPERS[0] or (part == WRAPPERS[1] and position == 0)


def _variable(module: nn.Module) -> str | None:
    """Return the name of the script's top-level variable whose value is the module or its wrapper;
    None if there is none."""
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if value is module and not name.startswith("_"):
            return name
    return None
