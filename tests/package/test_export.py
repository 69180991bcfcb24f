"""Exported folders, used in processes that cannot import cuagent."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import pytest

from cuagent import kernels
from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.package import ExportError, export
from cuagent.package.vendor import vendored
from cuagent.score import Score
from cuagent.task.imports import imported_digest
from cuagent.task.task import Device, Precision, Task
from cuagent.timing import Arm, Effort, Ratio, Timing
from cuagent.verdict import Reason, RuleResult, Verdict
from cuagent.verify.domain import Domain, TensorForm

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((1,), float(factor)))
    def forward(self, x):
        return x * self.weight + 1
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return [3]
"""
MODEL_NEW = """
import torch
from cuagent.kernels import load

kernels = load("kernels/affine.cpp")

class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((1,), float(factor)))
    def forward(self, x):
        y = torch.empty_like(x)
        kernels.affine(y, x, self.weight, x.numel())
        return y
"""
KERNEL = """
extern "C" void affine(float* y, const float* x, const float* w, long n) {
  for (long i = 0; i < n; ++i) y[i] = x[i] * w[0] + 1;
}
"""
ATTEMPT = Attempt((("kernels/affine.cpp", KERNEL), ("model_new.py", MODEL_NEW)))
TASK = Task(path=Path("affine-task.py"), entry="Model", source=REFERENCE)


Done = subprocess.CompletedProcess[str]
Run = Callable[[str, Path, dict[str, str]], Done]
Check = Callable[..., tuple[int, str]]


INIT = '[{"kind": "list", "items": [{"kind": "const", "value": 3}]}, '
INIT += '{"kind": "dict", "keys": [], "items": []}]'
DOMAIN = Domain(
    "cpu",
    ("x",),
    '{"kind": "list", "items": [{"kind": "tensor"}]}',
    (TensorForm("float32", (4, 8), (8, 1)),),
    f'{{"kind": "list", "items": {INIT}}}',
)


@dataclass(frozen=True)
class Measured:
    verdict: Verdict | None = None
    timing: Timing | None = None
    score: Score | None = None
    domain: Domain | None = DOMAIN
    contract: str = ""


MEASURED = Measured(
    Verdict(
        accepted=True,
        reason=Reason.ACCEPTED,
        detail="all draws within bounds",
        task=TASK.digest,
        attempt=ATTEMPT.digest,
        strict=RuleResult(True, 0.25),
        precision=Precision.MATCH,
        tier="landlock",
    ),
    Timing(
        arms=(Arm("candidate", 1e-5, ()), Arm("eager", 3e-5, ())),
        ratios={"eager": Ratio(3.0, 2.9, 3.125)},
        effort=Effort.RECORD,
        device="a named processor",
        seconds=1.0,
        versions={"torch": "9.9"},
    ),
    Score(2, 3.0, 1.0),
    contract="baselines: fp32 products; error against fp64: reference 2.0e-07, candidate 3.0e-07",
)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return export(ATTEMPT, TASK, MEASURED, tmp_path / "out", measured=date(2026, 1, 2))


@pytest.fixture(scope="module")
def without_cuagent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment with an empty kernel cache."""
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


# Refuse every import of cuagent, even if it is installed.
REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cuagent":
            raise ImportError("cuagent is not installed here")
sys.meta_path.insert(0, Refuse())
"""


@pytest.fixture
def run(python: list[str]) -> Run:
    def run(program: str, cwd: Path, environment: dict[str, str]) -> Done:
        return subprocess.run(
            [*python, "-I", "-c", REFUSE + program],
            capture_output=True,
            text=True,
            cwd=cwd,
            env=environment,
        )

    return run


USE = """import torch; m = ModelNew(3).eval()
with torch.no_grad():
    x = torch.ones(4, 8)
    assert not m.why_original(x)
    print(m(x)[0, :2].tolist(), m(torch.ones(2)).tolist())
"""
OUTPUT = "[4.0, 4.0] [4.0, 4.0]\n"


@pytest.mark.parametrize(
    "imported",
    [
        pytest.param(
            "sys.path.insert(0, {parent!r}); from out import ModelNew\n", id="as a package"
        ),
        pytest.param(
            "sys.path.insert(0, {out!r}); from model_new import ModelNew\n",
            id="by path",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_export_works_without_cuagent(
    out: Path, without_cuagent, imported: str, tmp_path: Path, run: Run
):
    program = imported.format(parent=str(out.parent), out=str(out)) + USE
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = run(program, elsewhere, without_cuagent)
    assert done.stdout == OUTPUT, done.stderr


@pytest.fixture
def check(run: Run) -> Check:
    def check(out: Path, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
        program = f"import runpy; sys.argv = {['check.py', *arguments]!r}; "
        program += f"runpy.run_path({str(out / 'check.py')!r}, run_name='__main__')"
        done = run(program, out.parent, environment)
        return done.returncode, done.stdout + done.stderr

    return check


def test_check_accepts_original_and_rejects_another_module(
    out: Path, without_cuagent, check: Check
):
    status, text = check(out, without_cuagent)
    assert status == 0, text
    assert "agrees" in text
    assert "the original ran" not in text
    other = out.parent / "other.py"
    other.write_text(REFERENCE.replace("+ 1", "+ 1.5"))
    status, text = check(out, without_cuagent, str(other))
    assert status == 1, text
    assert "DIFFERS" in text


def test_check_uses_inputs_from_command_line_options(without_cuagent, tmp_path: Path, check: Check):
    source = REFERENCE.replace("class Model", "class Affine").partition("def get_inputs")[0]
    named = replace(TASK, entry="Affine", source=source, inputs="f32[4,8]", init="factor=3")
    out = export(ATTEMPT, named, MEASURED, tmp_path / "out")
    status, text = check(out, without_cuagent)
    assert status == 0, text
    assert "agrees" in text
    (out / "reference.py").write_text("import not_there_at_all\n" + source)
    status, text = check(out, without_cuagent)
    assert status == 2
    assert text.endswith("name a copy of the original next to its imports\n")


def test_readme_contains_measured_figures(out: Path):
    text = (out / "README.md").read_text()
    for part in ("3.000x", "2.900 to 3.125", "a named processor", "torch 9.9", "2026-01-02"):
        assert part in text
    assert "| 98 % interval |" in text, "the confidence of a record timing"
    assert "landlock" in text
    assert "Precision: match" in text
    assert "Baselines: fp32 products; error against fp64: reference 2.0e-07" in text


def test_readme_lists_verified_calls(out: Path):
    text = (out / "README.md").read_text()
    assert "| x | `float32[4, 8]` |" in text
    assert "| constructor | `Model(3)` |" in text
    assert "Every other call runs the original module (`reference.py`)" in text


def test_export_refuses_record_without_verified_calls(tmp_path: Path):
    with pytest.raises(ExportError, match="which calls the kernel was verified for"):
        export(ATTEMPT, TASK, replace(MEASURED, domain=None), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_export_includes_files_that_original_imports(without_cuagent, tmp_path: Path, run: Run):
    project = tmp_path / "project"
    (project / "net").mkdir(parents=True)
    (project / "net" / "__init__.py").write_text("")
    (project / "net" / "one.py").write_text("ONE = 1\n")
    path = project / "net" / "task.py"
    source = "from .one import ONE\n" + REFERENCE.replace("+ 1", "+ ONE")
    path.write_text(source)
    task = replace(TASK, path=path, source=source, imported=imported_digest(path))
    out = export(ATTEMPT, task, MEASURED, tmp_path / "out")
    program = f"sys.path.insert(0, {str(out.parent)!r}); from out import ModelNew\n{USE}"
    shutil.rmtree(project)
    done = run(program, tmp_path, without_cuagent)
    assert done.stdout == OUTPUT, done.stderr


def test_readme_states_missing_measurements(tmp_path: Path):
    text = (export(ATTEMPT, TASK, Measured(), tmp_path / "out") / "README.md").read_text()
    assert "Not measured." in text
    assert "Not verified." in text


def test_export_refuses_folder_that_is_not_empty(tmp_path: Path):
    (tmp_path / "keep.txt").write_text("mine")
    with pytest.raises(ExportError, match="not empty"):
        export(ATTEMPT, TASK, MEASURED, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["keep.txt"]


def test_failed_export_leaves_no_files(tmp_path: Path):
    broken = Attempt((("kernels/a.cpp", "int x;\n"), ("model_new.py", "class ModelNew(:\n")))
    with pytest.raises(ExportError, match=r"model_new\.py is no Python"):
        export(broken, TASK, MEASURED, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_export_uses_prebuilt_library_without_compiler(tmp_path: Path, run: Run):
    built = build(ATTEMPT, Device.CPU, cache=tmp_path / "cache")
    out = export(ATTEMPT, TASK, MEASURED, tmp_path / "out", builds=[built])
    program = f"sys.path.insert(0, {str(out.parent)!r}); from out import ModelNew\n{USE}"
    environment = {"PATH": "/nonexistent", "HOME": str(tmp_path / "home")}
    done = run(program, tmp_path, environment)
    assert done.stdout == OUTPUT, done.stderr


@pytest.mark.slow
def test_export_installs_with_pip(out: Path, without_cuagent, tmp_path: Path, run: Run):
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    options = ["--disable-pip-version-check", "--target", str(target)]
    subprocess.run([*command, *options, str(out)], check=True, capture_output=True)
    program = f"sys.path.insert(0, {str(target)!r}); from affine_task_fast import ModelNew\n{USE}"
    done = run(program, tmp_path, without_cuagent)
    assert done.stdout == OUTPUT, done.stderr


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("from cuagent.kernels import load as get", "    from ._kernels import load as get"),
        ("import cuagent.kernels as ck", "    from . import _kernels as ck"),
        ("from cuagent import kernels", "    from . import _kernels as kernels"),
        ("import cuagent.kernels", "    from . import _kernels as _cuagent_kernels"),
        ("\ufeffimport os, cuagent.kernels.calls as c", "    from ._kernels import calls as c"),
        ("from cuagent.kernels.calls import Kernel", "    from ._kernels.calls import Kernel"),
        (
            "    from cuagent.kernels import (\n        load,\n    )",
            "        from ._kernels import load",
        ),
    ],
)
def test_vendored_rewrites_every_form_of_loader_import(line: str, package: str):
    before = "def f():\n" if line.startswith(" ") else ""
    text, changed = vendored(f"{before}{line}\n")
    assert changed
    assert package in text.splitlines()
    compile(text, "model_new.py", "exec")


def test_vendored_keeps_model_without_loader_import():
    assert vendored("import torch\n") == ("import torch\n", False)


SHARED_LINES = """\
# a page break \x0c and a separator \u2028 are no ends of lines
import sys; from cuagent.kernels import load; loaded = load.__name__
def inner(): from cuagent.kernels import load as other; return other.__name__
import cuagent.kernels as ck, math
import cuagent.kernels; whole = cuagent.kernels.load.__name__
import cuagent.kernels
é = "é"; from cuagent import kernels as again; after = math.pi
text = '''
from cuagent.kernels import load
'''
"""


def test_vendored_keeps_other_statements_of_a_line(tmp_path: Path):
    text, changed = vendored(SHARED_LINES)
    assert changed
    package = tmp_path / "package"
    shutil.copytree(Path(kernels.__file__).parent, package / "_kernels")
    (package / "__init__.py").write_text("")
    (package / "model_new.py").write_text(text)
    program = (
        "from package import model_new as m; import sys; "
        "assert not any(name.startswith('cuagent') for name in sys.modules); "
        "assert m.whole == m.cuagent.kernels.load.__name__ == m.loaded; "
        "print(m.loaded, m.inner(), m.ck.load.__name__, m.again.load.__name__, m.after, m.text)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.startswith("load load load load 3.14"), done.stderr
    assert done.stdout.endswith("from cuagent.kernels import load\n\n")


def test_name_of_the_task_file_is_no_code(tmp_path: Path):
    name = '"""\nimport os; os.environ["INJECTED"] = "1"\n"""\\N.py'
    out = export(ATTEMPT, replace(TASK, path=Path(name)), MEASURED, tmp_path / "out")
    for file in ("__init__.py", "model_new.py"):
        tree = ast.parse((out / file).read_text())
        assert not any(isinstance(n, ast.Name) and n.id == "os" for n in ast.walk(tree))
    (project,) = [
        line for line in (out / "pyproject.toml").read_text().splitlines() if "name =" in line
    ]
    assert re.fullmatch(r'name = "[a-z0-9-]+"', project)


def test_export_refuses_files_that_no_verdict_covers(tmp_path: Path):
    files = (("guard.py", "raise SystemExit"), *ATTEMPT.files)
    with pytest.raises(ExportError, match="no verdict covers it"):
        export(Attempt(files), TASK, MEASURED, tmp_path / "out")
    assert not (tmp_path / "out").exists()
