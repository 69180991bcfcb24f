"""Build the wheel of an exported package, without setuptools and without a network.

Travels with an exported package as its build backend (PEP 517). It uses the standard library only,
so `pip install DIR` has nothing to download for the build. The wheel holds the files of the folder.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LEFT_OUT = {"__pycache__", "build", "dist", "pyproject.toml", Path(__file__).name}
"""Names that are not part of the installed package."""


def build_wheel(folder: str, settings: Any = None, metadata: str | None = None) -> str:
    """Write the wheel to `folder` and return its name."""
    name, version, requires, python = _project()
    info = f"{name}-{version}.dist-info"
    texts = {
        f"{info}/METADATA": "\n".join(
            [
                "Metadata-Version: 2.1",
                f"Name: {name.replace('_', '-')}",
                f"Version: {version}",
                f"Requires-Python: {python}",
                *(f"Requires-Dist: {each}" for each in requires),
                "",
            ]
        ),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: cuagent\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/top_level.txt": f"{name}\n",
    }
    wheel = f"{name}-{version}-py3-none-any.whl"
    record = []
    with zipfile.ZipFile(Path(folder, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        files = [(f"{name}/{path.as_posix()}", (HERE / path).read_bytes()) for path in _files()]
        for inside, content in [*files, *((n, t.encode()) for n, t in texts.items())]:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append(f"{inside},sha256={digest.decode()},{len(content)}")
            archive.writestr(zipfile.ZipInfo(inside, (1980, 1, 1, 0, 0, 0)), content)
        record.append(f"{info}/RECORD,,")
        archive.writestr(f"{info}/RECORD", "\n".join(record) + "\n")
    return wheel


def build_sdist(folder: str, settings: Any = None) -> str:
    """Write the source distribution to `folder` and return its name."""
    name, version, _, _ = _project()
    base = f"{name}-{version}"
    with tarfile.open(Path(folder, f"{base}.tar.gz"), "w:gz") as archive:
        for path in [*_files(), Path("pyproject.toml"), Path(__file__).relative_to(HERE)]:
            archive.add(HERE / path, f"{base}/{path.as_posix()}")
    return f"{base}.tar.gz"


def _project() -> tuple[str, str, list[str], str]:
    """Return the name as a module, the version, the requirements and Python's versions."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return (
        project["name"].replace("-", "_"),
        project["version"],
        project["dependencies"],
        project["requires-python"],
    )


def _files() -> Iterator[Path]:
    """Yield the paths of the package's files, relative to its folder."""
    for place, folders, names in os.walk(HERE):
        folders[:] = sorted(n for n in folders if n not in LEFT_OUT and not n.startswith("."))
        for name in sorted(names):
            if name not in LEFT_OUT and not name.startswith(".") and not name.endswith(".pyc"):
                yield Path(place, name).relative_to(HERE)
