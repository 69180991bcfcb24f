"""Tests of `load_task`, which reads text and imports neither the file nor torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuagent.task import Device, Precision, TaskError, load_task
from cuagent.task.imports import imported_texts

KERNELBENCH = """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return x
def get_inputs(): return [torch.ones(2)]
def get_init_inputs(): return []
"""
PLAIN = "import torch\nclass Gate(torch.nn.Module):\n    def forward(self, x): return x\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.py"


def fails(spec: object, **options: str) -> str:
    with pytest.raises(TaskError) as caught:
        load_task(str(spec), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_kernelbench_form_is_loaded(file: Path) -> None:
    file.write_text(KERNELBENCH)
    task = load_task(file, device="cpu")
    assert (task.entry, task.name, task.device) == ("Model", "model", Device.CPU)
    assert task.source == KERNELBENCH


def test_class_with_inputs_is_loaded(file: Path) -> None:
    file.write_text(PLAIN)
    task = load_task(f"{file}:Gate", inputs="f32[2]", device="cpu", precision="tf32")
    assert (task.name, task.precision) == ("model.Gate", Precision.TF32)


def test_digest_changes_with_fields_that_change_the_answer(file: Path) -> None:
    file.write_text(PLAIN)
    tasks = [
        load_task(f"{file}:Gate", inputs=inputs, device="cpu", precision=precision)
        for inputs, precision in [("f32[2]", "match"), ("f32[3]", "match"), ("f32[2]", "tf32")]
    ]
    assert len({task.digest for task in tasks}) == 3


def test_digest_changes_with_imported_files(tmp_path: Path) -> None:
    package = tmp_path / "net"
    files = {
        "__init__.py": "",
        "model.py": "from .blocks import Gate\nimport shared\n" + KERNELBENCH,
        "blocks.py": "def make():\n    from net.deep import scale\nclass Gate: pass\n",
        "deep.py": "from . import blocks\nscale = 1\n",
        "other.py": "scale = 1\n",
        "../shared.py": "scale = 1\n",
    }
    package.mkdir()
    for name, text in files.items():
        (package / name).write_text(text)
    before = load_task(package / "model.py", device="cpu").digest
    (package / "other.py").write_text("scale = 2\n")
    assert load_task(package / "model.py", device="cpu").digest == before
    for name in ("__init__.py", "blocks.py", "deep.py", "../shared.py"):
        (package / name).write_text(files[name] + "scale = 2\n")
        assert load_task(package / "model.py", device="cpu").digest != before, name
        (package / name).write_text(files[name])
    assert load_task(package / "model.py", device="cpu").digest == before


def test_loading_runs_no_code_and_writes_no_files(file: Path) -> None:
    file.write_text("raise SystemExit('ran')\n" + KERNELBENCH)
    code = (
        "import sys; from cuagent.task import load_task; load_task(sys.argv[1]); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(file)], check=False).returncode == 0
    assert list(file.parent.iterdir()) == [file]


def test_missing_file_error_suggests_a_similar_name(file: Path) -> None:
    file.write_text(KERNELBENCH)
    assert f"no such file; did you mean {file}?" in fails(file.with_name("modle.py"))
    assert fails(file.with_name("other.py")).endswith("no such file")


def test_folder_is_rejected(tmp_path: Path) -> None:
    assert "is a folder" in fails(tmp_path)


def test_syntax_error_names_the_line(file: Path) -> None:
    file.write_text("import torch\nclass Model(:\n")
    assert fails(file).startswith(f"{file}:2: syntax error")


def test_binary_file_is_rejected(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00PK")
    assert "not a Python file" in fails(file)
    file.write_bytes(b"a\0b")
    assert "Python file" in fails(file) or "syntax error" in fails(file)
    assert "None" not in fails(file)


@pytest.mark.parametrize("deep", ["-" * 100_000 + "1", "(" * 5_000, "y" + ".z" * 50_000])
def test_text_beyond_the_parsers_depth_is_a_syntax_error(tmp_path: Path, deep: str) -> None:
    file = tmp_path / "deep.py"
    file.write_text(f"x = {deep}\n")
    assert "syntax error" in fails(file)


def test_missing_class_error_suggests_a_similar_name(file: Path) -> None:
    file.write_text(PLAIN)
    assert "no class Gaet; did you mean Gate?" in fails(f"{file}:Gaet", inputs="f32[2]")
    file.write_text(f"{PLAIN}class Other(Gate): pass\n")
    assert f'name the class after a colon, for instance {file}:Other --inputs "f32' in fails(file)
    file.write_text(f"{PLAIN}class Other(Gate): pass\ndef get_inputs(): return []\n")
    assert fails(file).endswith(f"for instance {file}:Other")
    file.write_text("x = 1\n")
    assert "defines no class" in fails(file)


def test_the_only_class_of_a_file_needs_no_name(file: Path) -> None:
    file.write_text(PLAIN)
    assert load_task(file, inputs="f32[2]").entry == "Gate"
    file.write_text(f"from nets import Model\n{PLAIN}")
    assert load_task(file, inputs="f32[2]").entry == "Model"


def test_file_without_a_class_names_the_missing_part(file: Path) -> None:
    file.write_text("import os\nimport not_there_at_all.nets\n")
    said = fails(file)
    assert said.startswith(
        f"{file}:2: defines no class, and imports not_there_at_all, which is not"
    )
    file.write_text("from torch.nn import GELU\n")
    assert f"name the class after a colon, for instance {file}:GELU" in fails(file)
    file.with_name("not_there_at_all.py").touch()
    file.write_text("import not_there_at_all\n")
    assert fails(file).startswith(f"{file}: defines no class; it must")


def test_missing_inputs_are_reported(file: Path) -> None:
    file.write_text(PLAIN)
    message = fails(f"{file}:Gate")
    assert "no get_inputs() and no --inputs" in message
    assert '--inputs "f32[8,512]"' in message


def test_dynamically_defined_classes_are_accepted(file: Path) -> None:
    for source in ("from other import *\n", "from torch.nn import GELU\n", "GELU = make()\n"):
        file.write_text(source)
        assert load_task(f"{file}:GELU", inputs="f32[2]", device="cpu").entry == "GELU"


def test_unknown_option_values_are_rejected(file: Path) -> None:
    file.write_text(KERNELBENCH)
    assert "choose one of auto, cpu, cuda" in fails(file, device="gpu")
    assert "choose one of match, fp32, tf32, bf16, fp16" in fails(file, precision="fp8")
    assert "is not a class name" in fails(f"{file}:2x")
    assert "--inputs" in fails(file, inputs="f32[")
    assert "--init" in fails(file, init="import os")


def test_pipe_or_device_as_a_task_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert "not a regular file" in fails(tmp_path / "pipe.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    assert "not a regular file" in fails(tmp_path / "zero.py")
    (tmp_path / "large.py").write_bytes(b"#" * ((4 << 20) + 1))
    assert "larger than 4 MiB; move data to another file" in fails(tmp_path / "large.py")


def test_link_out_of_the_project_is_no_imported_file(tmp_path: Path) -> None:
    (tmp_path / "key.py").write_text("PRIVATE = 1\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "inside.py").write_text("x = 1\n")
    (tmp_path / "project" / "linked.py").symlink_to("inside.py")
    (tmp_path / "project" / "helper.py").symlink_to(tmp_path / "key.py")
    task = tmp_path / "project" / "task.py"
    task.write_text("import linked\ntry:\n    import helper\nexcept Exception:\n    pass\n")
    assert imported_texts(task) == {"linked.py": "x = 1\n"}
