"""Files that an attempt compiles at its first call are copied to its later processes only."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from bodies import candidate

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import Task
from cuagent.verify import Referee
from cuagent.verify.compiled_code import (
    MOST_ATTEMPTS,
    MOST_DEPTH,
    MOST_ENTRIES,
    CompiledCode,
    compiles_when_called,
)

COMPILES = """
        import os
        from pathlib import Path
        kernel = Path(os.environ["TRITON_CACHE_DIR"], "abc", "kernel.cubin")  # as triton does
        compilers = os.environ.get("TORCHINDUCTOR_COMPILE_THREADS")
        print("found" if kernel.exists() else "compiled", compilers)
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.write_text("code")  # a later process may write there too
        Path(os.environ["HOME"], "note").write_text("no compiled code")
        assert not Path(os.environ["HOME"], "from another process").exists()
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        return torch.relu(self.linear(x))
"""


def attempt_of(text: str) -> Attempt:
    return Attempt((("model_new.py", text),))


@pytest.mark.slow
def test_the_first_call_compiles_for_the_verdict(task: Task, referee: Referee) -> None:
    attempt = candidate(COMPILES)
    built = build(attempt, task.device)
    alone = referee.verify(attempt, built)
    assert alone.accepted, alone.detail
    assert alone.output.startswith("compiled None")
    referee.compile_ahead(attempt, built)
    after = referee.verify(attempt, built)
    assert after.accepted, after.detail
    assert after.output.startswith("found 1"), "it starts compilers that it does not need"
    other = candidate(f"{COMPILES}\n        # another text")
    assert referee.verify(other, build(other, task.device)).output.startswith("compiled")


def test_a_first_call_that_fails_is_left_to_the_verdict(task: Task, referee: Referee) -> None:
    attempt = candidate("raise ValueError('no triton here')")
    built = build(attempt, task.device)
    referee.compile_ahead(attempt, built)
    assert attempt in referee.processes.compiled
    assert "no triton here" in referee.verify(attempt, built).detail


def test_only_attempts_that_compile_at_run_time_make_a_first_call() -> None:
    assert compiles_when_called(attempt_of("import triton"))
    assert compiles_when_called(attempt_of("self.net = torch.compile(net)"))
    assert not compiles_when_called(attempt_of("from cuagent.kernels import load"))


def test_only_regular_files_of_compilers_are_copied(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder, attempt = tmp_path / "folder", attempt_of("a")
    (folder / "triton" / "k").mkdir(parents=True)
    (folder / "triton" / "k" / "a.cubin").write_bytes(b"code")
    (folder / "triton" / "link").symlink_to(secret)
    (folder / "triton" / "folder").symlink_to(tmp_path)
    (folder / "triton" / "twice").hardlink_to(secret)
    (folder / "inductor").symlink_to(tmp_path)
    (folder / "other").write_text("not compiled")
    os.mkfifo(folder / "triton" / "pipe")
    compiled = CompiledCode()
    compiled.keep(attempt, folder)
    for asked, expected in ((attempt, ["triton/k/a.cubin"]), (attempt_of("b"), [])):
        target = tmp_path / asked.digest[:8]
        target.mkdir()
        compiled.copy_to(asked, target)
        files = [path for path in target.rglob("*") if not path.is_dir()]
        assert [str(path.relative_to(target)) for path in files] == expected
        assert not any(path.is_symlink() for path in target.rglob("*"))


@pytest.mark.parametrize("kind", ["files", "depth"])
def test_nothing_is_kept_beyond_a_limit(tmp_path: Path, kind: str) -> None:
    folder, attempt = tmp_path / "folder", attempt_of("a")
    deepest = folder.joinpath("triton", *["d"] * (MOST_DEPTH + 1 if kind == "depth" else 1))
    deepest.mkdir(parents=True)
    for number in range(MOST_ENTRIES + 1 if kind == "files" else 1):
        (deepest / str(number)).touch()
    compiled = CompiledCode()
    compiled.keep(attempt, folder)
    target = tmp_path / "target"
    target.mkdir()
    compiled.copy_to(attempt, target)
    assert not [path for path in target.rglob("*") if path.is_file()]
    assert attempt in compiled


def test_lists_of_triton_name_files_in_the_new_folder(tmp_path: Path) -> None:
    """Triton compiles again if a file in such a list does not exist."""
    folder, target, attempt = tmp_path / "folder", tmp_path / "target", attempt_of("a")
    kernel = folder / "triton" / "abc" / "k.cubin"
    kernel.parent.mkdir(parents=True)
    target.mkdir()
    kernel.write_bytes(b"code")
    kernel.chmod(0o755)
    listed = json.dumps({"child_paths": {"k.cubin": str(kernel)}})
    (kernel.parent / "__grp__k.json").write_text(listed)
    compiled = CompiledCode()
    compiled.keep(attempt, folder)
    compiled.copy_to(attempt, target)
    found = json.loads((target / "triton" / "abc" / "__grp__k.json").read_text())
    assert found["child_paths"] == {"k.cubin": str(target / "triton" / "abc" / "k.cubin")}
    assert os.access(found["child_paths"]["k.cubin"], os.X_OK)


@pytest.mark.parametrize(("name", "changed"), [("other", True), ("longer name", False)])
def test_paths_in_binary_files_change_if_the_new_one_is_as_long(
    tmp_path: Path, name: str, changed: bool
) -> None:
    """torch's cached graphs name the folder in which a kernel's tuning is stored."""
    folder, target, attempt = tmp_path / "first", tmp_path / name, attempt_of("a")
    graph = folder / "inductor" / "fxgraph" / "abc"
    graph.parent.mkdir(parents=True)
    target.mkdir()
    graph.write_bytes(pickle.dumps({"filename": str(folder / "kernel.py"), "after": 1}))
    compiled = CompiledCode()
    compiled.keep(attempt, folder)
    compiled.copy_to(attempt, target)
    found = pickle.loads((target / "inductor" / "fxgraph" / "abc").read_bytes())
    where = target if changed else folder
    assert found == {"filename": str(where / "kernel.py"), "after": 1}


def test_oldest_attempts_are_forgotten(tmp_path: Path) -> None:
    compiled, attempts = CompiledCode(), [attempt_of(str(k)) for k in range(MOST_ATTEMPTS + 2)]
    for attempt in attempts:
        compiled.keep(attempt, None)
    assert [attempt in compiled for attempt in attempts] == [False] * 2 + [True] * MOST_ATTEMPTS
