"""File tools follow no link while a command swaps folders of the work folder for links."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cuagent.agent import Run
from cuagent.agent.tools.tool import ToolResult
from cuagent.sandbox import beneath

Call = Callable[..., ToolResult]
SECRET = "a secret of the user"
SECONDS = 1.0
"""Seconds of each race; in this time, calls that opened files by path leaked dozens of times."""


@pytest.fixture(params=["openat2", "by component"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open files with openat2, and as on a kernel without it."""
    if request.param == "by component":
        monkeypatch.setattr(beneath, "_has_openat2", lambda: False)
    elif not beneath._has_openat2():
        pytest.skip("this kernel has no openat2")


@pytest.fixture
def outside(run: Run, tmp_path: Path) -> Path:
    """Return a folder of the user; the work folder has a `link` to it and a real `folder`."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text(SECRET)
    (run.work / "folder").mkdir()
    (run.work / "folder" / "file").write_text("inside")
    (run.work / "link").symlink_to(outside)
    return outside


@contextmanager
def swapped(first: Path, second: Path) -> Iterator[None]:
    script = Path(__file__).with_name("swapping.py")
    command = [sys.executable, "-I", "-S", str(script), str(first), str(second)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        try:
            yield
        finally:
            swapper.kill()


def test_reads_and_listings_follow_no_swapped_link(
    call: Call, run: Run, outside: Path, way: None
) -> None:
    texts: set[str] = set()
    with swapped(run.work / "folder", run.work / "link"):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            texts.add(call("read", path="folder/file").text)
            texts.add(call("read", path="folder/missing").text)
            texts.add(call("glob", pattern="*/*").text)
        for _ in range(5):
            texts.add(call("grep", pattern=".", files="*/*").text)
    assert not any(SECRET in text for text in texts), texts
    assert not any(f"{len(SECRET)} bytes" in text for text in texts), texts
    assert any("inside" in text for text in texts)


def test_writes_and_edits_follow_no_swapped_link(
    call: Call, run: Run, outside: Path, way: None
) -> None:
    written = 0
    with swapped(run.work / "folder", run.work / "link"):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for number in range(20):
                path = f"folder/{number}"
                written += not call("write", path=path, text="x").is_error
                written += not call("edit", path=path, old="x", new="y").is_error
                call("write", path=f"folder/deep{number}/file", text="x")
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == SECRET
    assert written


def test_background_output_follows_no_link(call: Call, run: Run, outside: Path) -> None:
    command = (
        f"ln -s {outside}/file .outputs/evil; mv .outputs/evil .outputs/bash-1.txt; echo moved"
    )
    job = call("bash", command=command, background=True).data["job"]
    text = call("bash_output", job=job).text
    assert SECRET not in text
    assert "moved" in text


def test_link_inside_the_work_folder_is_reported(call: Call, run: Run, way: None) -> None:
    (run.work / "a.py").write_text("inside")
    (run.work / "b.py").symlink_to("a.py")
    for tool, more in (("read", {}), ("write", {"text": "x"})):
        result = call(tool, path="b.py", **more)
        assert result.is_error
        assert "symbolic link" in result.text
    assert "b.py" not in call("glob").text


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*", {"a.py"}),
        ("**/*", {"a.py", "kernels/a.cu", "kernels/deep/b.cu"}),
        ("**/*.cu", {"kernels/a.cu", "kernels/deep/b.cu"}),
        ("kernels/**/*", {"kernels/a.cu", "kernels/deep/b.cu"}),
        ("./kernels/[a-c].c?", {"kernels/a.cu"}),
        ("**", set()),
        ("../*", set()),
    ],
)
def test_glob_patterns_match_like_pathlib(
    call: Call, run: Run, pattern: str, names: set[str]
) -> None:
    (run.work / "reference.py").unlink()
    for name in ("a.py", "kernels/a.cu", "kernels/deep/b.cu"):
        (run.work / name).parent.mkdir(exist_ok=True, parents=True)
        (run.work / name).write_text("")
    found = {line.split("  ")[0] for line in call("glob", pattern=pattern).text.splitlines()}
    assert found - {"no file matches"} == names
