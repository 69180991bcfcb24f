"""Bad input: one line that says what, where and what to do, the right code, nothing left behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Cuagent

from cuagent.cli.check import _report
from cuagent.cli.exits import Crash, Exit, _break_line, crashes_to, exit_for
from cuagent.verify.admission import Admission

GOOD = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return []
"""


@pytest.fixture
def task(tmp_path: Path) -> str:
    (tmp_path / "task.py").write_text(GOOD)
    return "task.py"


BAD = [
    (["optimize"], "Missing argument 'TASK'; see cuagent optimize --help"),
    (["optimise", "x.py"], "Did you mean 'optimize'"),
    (["optimize", "absent.py"], "absent.py: no such file"),
    (["optimize", "task.py:Nothing"], "no class Nothing"),
    (["optimize", "broken.py"], "broken.py"),
    (["optimize", "task.py", "--max-time", "soon"], "--max-time: 'soon'; it takes a time"),
    (["optimize", "task.py", "--model", "openai:gpt-5"], "OPENAI_API_KEY"),
    (["optimize", "task.py", "--out", "."], "already exists"),
    (["optimize", "task.py", "--out", "task.py/new"], "task.py/new: cannot be written (Not a dir"),
    (["verify", "task.py", "home"], "no model_new.py"),
    (["profile", "task.py", "--svg", "nowhere/x.svg"], "nowhere/x.svg: cannot be written"),
    (["baseline", "task.py", "--rungs", "eager,foo"], "--rungs: no 'foo'; there are eager"),
    (["export", "latest", "--out", "new"], "no runs here; start one with"),
]
MORE_BAD = [
    (["optimize", "task.py", "--device", "tpu"], "'tpu'; it takes auto or cpu or cuda"),
    (["optimize", "task.py", "--precision", "int4"], "'int4'"),
    (["optimize", "task.py", "--max-steps", "0"], "--max-steps: 0; it takes a whole number"),
    (["optimize", "task.py", "--max-steps", "many"], "--max-steps"),
    (["optimize", "task.py", "--max-time", "3x"], "a time above 0: 90s, 30m, 1.5h"),
    (["optimize", "task.py", "--model", "gpt"], "--model gpt: unknown model"),
    (["optimize", "task.py", "--output-format", "yaml"], "use text, json, stream-json"),
    (["optimize", "task.py", "--message", " "], "--message is empty"),
    (["optimize", "task.py", "--inputs", "f99[1]"], "f99"),
    (["verify", "task.py"], "Missing argument 'CANDIDATE'"),
    (["verify", "task.py", "absent"], "absent: no such file or folder"),
    (["verify", "task.py", "task.py", "--timing", "long"], "use none, quick or record"),
    (["profile", "absent.py"], "absent.py: no such file"),
    (["doctor", "--device", "tpu"], "'tpu'; it takes auto or cpu or cuda"),
    (["export", "latest"], "Missing option '--out'"),
    (["show", "abc"], "no runs here; start one with"),
    (["replay"], "no runs here; start one with"),
    (["show", "--colour"], "No such option"),
]
"""Arguments that are refused at the same places as those in `BAD`."""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [*BAD, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_BAD)],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_argument_gets_one_line_and_code_2(
    cuagent: Cuagent, task: str, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "broken.py").write_text("class Model(:\n")
    (tmp_path / "home").mkdir()
    before = sorted(tmp_path.rglob("*"))
    done = cuagent(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert re.fullmatch(r"cuagent: [^\n]+\n", done.stderr), done.stderr
    assert said in done.stderr
    assert sorted(tmp_path.rglob("*")) == before, "something was left behind"


@pytest.mark.slow
def test_a_task_without_one_right_answer_is_refused_before_any_work(
    cuagent: Cuagent, tmp_path: Path
) -> None:
    (tmp_path / "noise.py").write_text(GOOD.replace("torch.softmax(x, -1)", "torch.rand_like(x)"))
    done = cuagent("optimize", "noise.py")
    assert done.returncode == 2
    assert "noise.py: not certifiable, because" in done.stderr
    assert not (tmp_path / ".cuagent").exists()


def test_help_names_the_commands_and_exit_codes(cuagent: Cuagent) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        done = cuagent(*arguments)
        assert done.returncode == 0
        for word in ("optimize", "verify", "profile", "export", "runs", "show", "Exit codes"):
            assert word in done.stdout


def test_train_alone_prints_its_help(cuagent: Cuagent) -> None:
    done = cuagent("train")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pipeline" in done.stdout


def test_the_help_of_optimize_tells_every_default(cuagent: Cuagent) -> None:
    said = " ".join(cuagent("optimize", "--help").stdout.split())
    for words in (
        "Calls of the model. [default: 100]",
        "US dollars. [default: 5]",
        "1.5h. [default: 1h]",
        "profiling. [default: 1h]",
        "keep-alive bytes count. [default: 10m]",
        "[default: match]",
    ):
        assert words in said


def test_version_option_prints_the_version(cuagent: Cuagent) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", cuagent("--version").stdout)


def test_the_command_line_loads_nothing_heavy() -> None:
    heavy = ("torch", "openai", "anthropic", "rich.console", "pygments", "git", "numpy")
    program = (
        "import sys, cuagent.cli.main as m; m.run(['--help']); "
        f"print(sorted(set({heavy!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_runs_is_no_error(cuagent: Cuagent) -> None:
    done = cuagent("runs")
    assert done.returncode == 0
    assert "cuagent optimize TASK" in done.stdout
    assert cuagent("runs", "--json").stdout == "[]\n"


def test_a_defect_leaves_its_traceback_in_a_file_and_says_where(tmp_path: Path) -> None:
    said = r"internal error of cuagent: ValueError: odd; .*crash.txt"
    with pytest.raises(Crash, match=said) as caught, crashes_to(tmp_path):
        raise ValueError("odd")
    assert exit_for(caught.value) is Exit.INFRASTRUCTURE
    assert "ValueError: odd" in (tmp_path / "crash.txt").read_text()
    with pytest.raises(BrokenPipeError), crashes_to(tmp_path):
        raise BrokenPipeError


@pytest.mark.parametrize("command", ["optimize --help", "config show"])
def test_a_closed_pipe_is_no_error(tmp_path: Path, command: str) -> None:
    reader = f"(trap '' PIPE; sleep 1; {sys.executable} -um cuagent {command}; echo $? >&2) | true"
    done = subprocess.run(
        reader, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == "0\n"


def test_a_command_in_a_message_is_not_broken() -> None:
    command = "cuagent optimize --resume 20261126-211039-training-modelstep --max-steps 200"
    message = f"cuagent: step limit, after some words about it; continue with: {command}"
    rows = _break_line(message, 60)
    assert rows == ["cuagent: step limit, after some words about it;", "continue with:", command]
    assert _break_line("cuagent: see: cuagent show latest", 60) == [
        "cuagent: see: cuagent show latest"
    ]
    sentence = ["cuagent: runs/1: unknown origin: cuagent did not make this", "run for you"]
    assert _break_line(" ".join(sentence), 60) == sentence


def test_lines_of_check_are_broken_at_blanks_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "judged in eval mode: bn (BatchNorm1d), drop (Dropout) may act differently in training"
    kinds = ("own", "normal", "one-signed", "mixed magnitude", "large offset", "ties")
    found = Admission("digest", (), (note,), kinds, 192, fp64=True, settings="fp32 products")
    _report(found, json=False)
    assert f"note: {note}\n" in capsys.readouterr().out, "a pipe gets whole lines"
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _report(found, json=False)
    shown = capsys.readouterr().out
    assert all(len(line) <= 60 for line in shown.split("\n"))
    assert note in " ".join(shown.split())
