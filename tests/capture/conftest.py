"""Fixture that captures a module of a script, as `cuagent capture` does."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from scripts import Capture, Run  # type: ignore[import-not-found]

from cuagent.capture.run import Order
from cuagent.cli.capture import captured, report


@pytest.fixture
def capture(tmp_path: Path, python: list[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Capture a module of the script with this text, in tmp_path, as `cuagent capture` does."""
    monkeypatch.chdir(tmp_path)

    def run(text: str, module: str, *arguments: str, out: str = "task", **options: Any) -> Capture:
        Path("script.py").write_text(dedent(text))
        order = Order(Path("script.py"), arguments, module, python=tuple(python), **options)
        manifest, checked = captured(order, Path(out))
        text = "\n".join(report(manifest, checked, Path(out)))
        return Capture(manifest, checked, text, tmp_path / out)

    return run
