"""The list of packages in pyproject.toml, which an installation follows."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_folder_with_code_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    own = {".".join(f.parent.relative_to(ROOT).parts) for f in ROOT.glob("cuagent/**/*.py")}
    training = {".".join(f.parent.relative_to(ROOT).parts) for f in ROOT.glob("training/**/*.py")}
    skills = {".".join(f.parent.relative_to(ROOT).parts) for f in ROOT.glob("skills/**/*.md")}
    assert set(listed) == own | {f"cuagent.{name}" for name in training | skills}
