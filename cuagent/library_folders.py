"""Find the folders of packages that a user installed outside of this Python.

`PYTHONPATH` (usual on clusters) and `pip install --user` make packages importable. The processes of
a verdict start with `python -I` and would not find these packages.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "CUAGENT_LIBRARIES"
"""Environment variable that passes the result of `library_folders` to child processes."""


def library_folders() -> list[str]:
    """Return the folders of this process's sys.path into which pip installed packages.

    Omitted are this Python's own folders, folders of source code, and folders below the working
    directory, which may belong to a foreign repository. Child processes append the result to
    sys.path after the standard library and torch, so that it shadows neither.
    """
    if VARIABLE in os.environ:
        return [folder for folder in os.environ[VARIABLE].split(os.pathsep) if folder]
    own = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    return [folder for folder in dict.fromkeys(sys.path) if _is_installed(Path(folder), own)]


def _is_installed(folder: Path, own: list[Path]) -> bool:
    if not folder.is_absolute() or os.pathsep in str(folder):
        return False
    try:
        resolved = folder.resolve()
        if any(resolved.is_relative_to(place) for place in (*own, Path.cwd())):
            return False
        return any(folder.glob("*.dist-info"))
    except OSError:
        return False
