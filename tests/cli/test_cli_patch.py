"""`cuagent apply --to FILE` and `--undo FILE` on a user's own file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import Cuagent

from cuagent.attempt import Attempt
from cuagent.build.result import Build
from cuagent.judgement import Judgement
from cuagent.package.folder import ExportError
from cuagent.package.patch import patched, unpatched
from cuagent.record import RunLog, new_run, plain
from cuagent.score import Score
from cuagent.task import Task
from cuagent.verdict import Reason, Verdict
from cuagent.verify.domain import Domain, TensorForm

pytestmark = pytest.mark.slow

FILE = '''"""A file of the user."""
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1  # the user's comment

if __name__ == "__main__":
    net = Net().eval()
    with torch.no_grad():
        print(net(torch.ones(2, 4)).sum().item(), hasattr(net, "why_original"))
        print(getattr(net, "why_original", lambda x: "-")(torch.ones(2, 4)) == "")
'''
NEW = """
import torch
from cuagent.kernels import load

kernels = load("kernels/twice.cpp")

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = x.new_empty(x.shape)
        kernels.twice(y, x, x.numel())
        return y
"""
KERNEL = """
extern "C" void twice(float* y, const float* x, long n) {
  for (long i = 0; i < n; ++i) y[i] = x[i] * 2 + 1;
}
"""
ATTEMPT = Attempt((("kernels/twice.cpp", KERNEL), ("model_new.py", NEW)))
FOLDER = "net_net_fast"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(FILE)
    task = Task(tmp_path / "net.py", "Net", FILE)
    nothing, none = '{"kind": "list", "items": []}', '{"kind": "dict", "keys": [], "items": []}'
    domain = Domain(
        "cpu",
        ("x",),
        '{"kind": "list", "items": [{"kind": "tensor"}]}',
        (TensorForm("float32", (2, 4), (4, 1)),),
        f'{{"kind": "list", "items": [{nothing}, {none}]}}',
    )
    verdict = Verdict(True, Reason.ACCEPTED, "", "t", ATTEMPT.digest)
    build = Build(ATTEMPT.digest, (), (), True, 0.1)
    judged = Judgement(ATTEMPT.digest, build, verdict, None, Score(1), None, domain)
    with RunLog(new_run("net", tmp_path / ".cuagent" / "runs")) as log:
        described = {**plain(task), "name": task.name, "digest": task.digest}
        log.write("session", task=described, model="expert")
        log.write("attempt", n=1, digest=ATTEMPT.digest, commit="", files=dict(ATTEMPT.files))
        log.write("judgement", effort="quick", **plain(judged) | {"attempt": 1})
        log.write("end", stop="submitted", summary="attempt 1", attempt=1)
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"__pycache__", "home"}


def test_diff_is_shown_and_nothing_is_written_without_consent(
    cuagent: Cuagent, project: Path
) -> None:
    done = cuagent("apply", "--to", "net.py")
    assert done.returncode == 2
    assert "+accelerate_(Net)" in done.stdout
    assert "nothing was written; give --yes" in done.stderr
    assert (project / "net.py").read_text() == FILE
    assert names(project) == {".cuagent", "net.py"}


def test_patched_file_runs_the_kernel_and_undo_restores_it(cuagent: Cuagent, project: Path) -> None:
    assert cuagent("apply", "--to", "net.py", "--yes").returncode == 0
    assert cuagent("apply", "--to", "net.py", "--yes").returncode == 0, "twice is once"
    command = [sys.executable, "-W", "error::RuntimeWarning", "net.py"]
    ran = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600)
    assert ran.stdout == "24.0 True\nTrue\n", ran.stderr
    done = cuagent("apply", "--undo", "net.py")
    assert done.returncode == 0, done.stderr
    assert (project / "net.py").read_text() == FILE
    assert names(project) == {".cuagent", "net.py"}
    assert "holds no change" in cuagent("apply", "--undo", "net.py").stderr


def test_undo_keeps_a_folder_that_the_user_changed(cuagent: Cuagent, project: Path) -> None:
    assert cuagent("apply", "--to", "net.py", "--yes").returncode == 0
    (project / FOLDER / "mine.txt").write_text("mine")
    done = cuagent("apply", "--undo", "net.py")
    assert "stays, because mine.txt was changed or added" in done.stderr
    assert (project / "net.py").read_text() == FILE
    assert (project / FOLDER / "mine.txt").read_text() == "mine"


def test_other_class_or_folder_of_the_user_is_refused(cuagent: Cuagent, project: Path) -> None:
    (project / "net.py").write_text(FILE.replace("x * 2", "x * 3"))
    done = cuagent("apply", "--to", "net.py", "--yes")
    assert "its class Net is not the one that was verified; nothing was written" in done.stderr
    (project / "net.py").write_text(FILE)
    (project / FOLDER).mkdir()
    done = cuagent("apply", "--to", "net.py", "--yes")
    assert "exists, and cuagent did not write it" in done.stderr
    assert names(project / FOLDER) == set()
    assert "cannot be read" in cuagent("apply", "--to", "none.py", "--yes").stderr


@pytest.mark.parametrize("ending", ["", "\n", "\n\n\nx = 1\n", "\n# no more"])
@pytest.mark.parametrize("in_package", [False, True])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_unpatched_text_is_the_former_text(ending: str, in_package: bool, newline: str) -> None:
    before = f"import torch\nclass Net:\n    x = 1{ending}".replace("\n", newline)
    after = patched(before, "Net", "net_net_fast", in_package=in_package)
    assert after.count("\n") == after.count(newline)
    compile(after, "net.py", "exec")
    assert patched(after, "Net", "net_net_fast", in_package=in_package) == after
    assert unpatched(after) == (before, ["net_net_fast"])
    both = patched(after.replace("import torch", "class Two: ..."), "Two", "two", in_package=False)
    assert unpatched(both, "two")[0] == after.replace("import torch", "class Two: ...")


@pytest.mark.parametrize(
    ("text", "why"), [("x = 1\n", "no class Net"), ("class Net(:\n", "not valid Python")]
)
def test_file_without_the_class_cannot_be_patched(text: str, why: str) -> None:
    with pytest.raises(ExportError, match=why):
        patched(text, "Net", "net_net_fast", in_package=False)


def test_report_is_one_page_without_network(cuagent: Cuagent, project: Path) -> None:
    done = cuagent("report", "--out", "page.html")
    assert done.returncode == 0, done.stderr
    text = (project / "page.html").read_text()
    assert "<h1>Net of net.py</h1>" in text
    assert "kernels/twice.cpp" in text
    assert "net_net_fast.optimize_(model)" in text
    assert "no timed result yet" in text, "nothing was timed in this run"
    done = cuagent("report", "--out", "page.html")
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert "cannot be written" in cuagent("report", "--out", "page.html/x.html").stderr
