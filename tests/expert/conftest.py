"""Fixture that generates a candidate from a task's text, writes it and imports it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agreement import Imported

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import open_subject
from cuagent.task import load_task


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Imported]:
    def make(
        text: str, entry: str, options: Options | None = None, device: str = "cpu"
    ) -> Imported:
        path = tmp_path / "task.py"
        path.write_text(text)
        subject = open_subject(load_task(f"{path}:{entry}", device=device))
        candidate = make_candidate(subject, options or Options())
        assert candidate is not None
        folder = tmp_path / f"candidate{len(list(tmp_path.iterdir()))}"
        for name, content in candidate.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        module = imported(folder / "model_new.py")
        task = imported(path)
        return Imported(candidate, module.ModelNew, getattr(task, entry), task.get_inputs)

    return make


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
