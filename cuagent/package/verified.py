"""Read which calls were verified, and import the kernel's class and the original's.

Travels with an exported or applied kernel, next to `guard.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .flags import flags_test
from .forms import Form, form_text, nested


def read_verified(path: Path) -> dict[str, Any]:
    """Return the facts of `verified.json`, with the arguments as nested `Form` objects.

    Its entry `same_flags` is a function that returns True if torch's flags for matrix products have
    the verified values. The test takes a microsecond, so it is left out for a kernel that neither
    calls products nor sets flags. Raises RuntimeError if the file is damaged.
    """
    try:
        return _facts(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise RuntimeError(f"{path} is damaged; export the package again") from error


def _facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of the file with `Form` objects, and the test of torch's flags."""
    tensors = iter(Form(**each) for each in facts["tensors"])
    forms = nested(facts["nesting"], tensors)
    shapes = [
        nested(each["nesting"], iter([Form(**form) for form in each["tensors"]]))
        for each in facts.get("more_shapes", ())
    ]
    return facts | {
        "forms": forms,
        "shapes": [forms, *shapes],
        "init": nested(facts["init"], tensors),
        "same_flags": flags_test(facts["flags"]) if flags_matter(facts) else _always,
    }


def flags_matter(facts: dict[str, Any]) -> bool:
    """Return True if torch's flags for matrix products can change the kernel's result, or the
    kernel sets them."""
    return bool(facts.get("products", True) or facts["changes"])


def _always() -> bool:
    """Replace the test of torch's flags for a kernel that does not depend on them."""
    return True


def by_position(
    names: list[str], args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (positional arguments, named arguments that have no position).

    `names` are the parameters in order of position.
    """
    remaining, positional = dict(named), list(args)
    for name in names[len(args) :]:
        if name not in remaining:
            break
        positional.append(remaining.pop(name))
    return tuple(positional), remaining


def verified_text(facts: dict[str, Any]) -> str:
    """Return the verified arguments for messages: `x: float32[4, 128] on cpu`."""
    forms = facts["forms"]
    names = [*facts["names"], *(f"argument {n}" for n in range(len(forms)))]
    parts = [f"{name}: {form_text(form)}" for name, form in zip(names, forms, strict=False)]
    return f"{', '.join(parts)} on {facts['device']}"


def kernel_class(folder: Path) -> Any:
    """Import the class `ModelNew` from `folder`. Raises TypeError if it is not callable."""
    model = importlib.import_module(f"{__name__.rpartition('.')[0]}.model_new").ModelNew
    if not callable(model):
        raise TypeError(f"{folder}: its ModelNew is not a class")
    return model


def original_class(folder: Path, reference: Path, facts: dict[str, Any]) -> Any:
    """Import the original class from the file `reference`.

    Raises RuntimeError if the file cannot be imported.
    """
    name = f"{__name__.rpartition('.')[0]}._original"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, reference)
        assert spec is not None
        assert spec.loader is not None
        module: ModuleType = importlib.util.module_from_spec(spec)
        if facts["package"]:
            module.__package__ = facts["package"]
        import_folders = [str(folder / "imports"), str(reference.parent)]
        sys.path += [path for path in import_folders if path not in sys.path]
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            raise RuntimeError(
                f"this call needs the original module, and {reference} cannot be imported "
                f"({type(error).__name__}: {error}); the kernel is verified for "
                f"{verified_text(facts)} only"
            ) from error
    return getattr(sys.modules[name], facts["entry"])
