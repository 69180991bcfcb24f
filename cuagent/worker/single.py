"""Run one call of a candidate in a process of its own, under a debugging tool such as a sanitizer.

    python single.py FOLDER

FOLDER contains the attempt, `order.json` and `data.pt` (inputs and weights). No result is compared.
The exit code says if the call completed. `reached.json` lists the functions of the attempt's
libraries that were called.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

REACHED = "reached.json"


def main(folder: Path) -> None:
    import torch

    from cuagent.library_folders import library_folders
    from cuagent.task import unflatten
    from cuagent.worker.arms import ModelSpec, import_arm
    from cuagent.worker.memory.arena import synchronize

    sys.path += library_folders()
    model_spec = ModelSpec.from_json(json.loads((folder / "order.json").read_text()))
    data = torch.load(folder / "data.pt", map_location=model_spec.device.value, weights_only=True)
    if model_spec.settings is not None:
        model_spec.settings.apply()
    model = import_arm(model_spec, folder)()
    model.load_state_dict(dict(zip(model_spec.state, data["weights"], strict=True)))
    reached = _recorded()
    with torch.no_grad():
        model(*unflatten(data["inputs"], model_spec.inputs))
    synchronize(model_spec.device.value)
    (folder / REACHED).write_text(json.dumps(sorted(reached)))


def _recorded() -> set[str]:
    """Return a set; each later call of a library function adds the function's name to it."""
    from cuagent.kernels.calls import Launcher

    plain, names = Launcher.__call__, set[str]()

    def recorded_call(launcher: Launcher, *arguments: Any) -> None:
        names.add(launcher.prototype.name)
        plain(launcher, *arguments)

    Launcher.__call__ = recorded_call  # type: ignore[method-assign, assignment]
    return names


def _make_cuagent_importable() -> None:
    """Add the folder that contains cuagent to sys.path, because `python -I` leaves it out."""
    package = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        "cuagent", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cuagent"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _make_cuagent_importable()
    main(Path(sys.argv[1]))
