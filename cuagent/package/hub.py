"""Turn an exported package into a repository of the Hugging Face kernels format.

`build/torch-cuda/` or `build/torch-cpu/` holds the package, a folder with the package's name for
older clients, and `metadata.json` with the sha256 digest of each file. The code uses no compiled
torch extension, so one variant serves all versions of torch.
Source: https://github.com/huggingface/kernels, docs/source/kernel-requirements.md.

Not covered: the upload, a signature, and layers for `kernelize`; `optimize_` takes their place.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cuagent.package.folder import ExportError, atomic_folder
from cuagent.package.guarded import FOLDER
from cuagent.package.machine import namespace

LICENSE = "other"
"""License in the metadata; only the owner of the module may choose a specific one."""


def hub_repository(package: Path, out: Path) -> Path:
    """Write the exported `package` to `out` in the layout of Hugging Face kernels; return `out`.

    Raises ExportError.
    """
    facts = json.loads((package / "task.json").read_text())
    if "rung" in facts:
        raise ExportError("the result has no kernel, so there is nothing for --format hf-kernels")
    with atomic_folder(out) as folder:
        variant = folder / "build" / f"torch-{facts['device']}"
        shutil.copytree(
            package, variant, ignore=shutil.ignore_patterns("pyproject.toml", "cuagent_build.py")
        )
        text = (variant / "README.md").read_text()
        (variant / "README.md").unlink()
        (folder / "README.md").write_text(_readme(text, facts["name"], facts["device"]))
        older = variant / facts["name"]
        older.mkdir()
        (older / "__init__.py").write_text(_older(facts["name"]))
        metadata = _metadata(variant, facts)
        (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    return out


def _readme(text: str, name: str, device: str) -> str:
    """Return the package's README with the use of a repository, which pip does not install."""
    before, _, rest = text.partition("\n## Use\n")
    after = rest.partition("\n## Verified calls\n")[2]
    use = f"""
## Use

```python
from kernels import get_kernel

fast = get_kernel("USER/REPOSITORY", version=1, trust_remote_code=True)  # after you uploaded it
fast.optimize_(model)  # modules of the verified class run the kernel, in place
fast.restore_(model)  # undo
```

Without the Hub: `PYTHONPATH=build/torch-{device}`, then `import {name}`.
"""
    return f"{before}{use}\n## Verified calls\n{after}"


def _metadata(variant: Path, facts: dict[str, Any]) -> dict[str, Any]:
    backend: dict[str, Any] = {"type": facts["device"]}
    if facts["device"] == "cuda":
        backend["archs"] = sorted(_architectures(variant))
    return {
        "id": namespace(variant / FOLDER),
        "name": facts["name"].replace("_", "-"),
        "version": 1,
        "license": LICENSE,
        "python-depends": [],
        "backend": backend,
        "digest": {"algorithm": "sha256", "files": dict(_digests(variant))},
    }


def _architectures(variant: Path) -> Iterable[str]:
    """Yield the compute capabilities of the compiled code, such as 9.0."""
    for folder in variant.rglob("prebuilt/sm_*"):
        if found := re.fullmatch(r"sm_(\d+)(\d)a?", folder.name):
            yield f"{found[1]}.{found[2]}"


def _digests(variant: Path) -> Iterable[tuple[str, str]]:
    for file in sorted(path for path in variant.rglob("*") if path.is_file()):
        digest = hashlib.sha256(file.read_bytes()).digest()
        yield file.relative_to(variant).as_posix(), base64.b64encode(digest).decode()


def _older(name: str) -> str:
    return f'''"""The package under its own name, for clients that look for it in this folder."""

import importlib.util
import sys
from pathlib import Path

_file = Path(__file__).resolve().parent.parent / "__init__.py"
_spec = importlib.util.spec_from_file_location(
    "_{name}", _file, submodule_search_locations=[str(_file.parent)]
)
_package = importlib.util.module_from_spec(_spec)
sys.modules["_{name}"] = _package
_spec.loader.exec_module(_package)
ModelNew, optimize_, restore_ = _package.ModelNew, _package.optimize_, _package.restore_
'''
