"""Test freezing an attempt: the files that it includes, and the errors for files that it must not
include."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import cuagent.attempt
from cuagent.attempt import Attempt, AttemptError, CandidateFault, freeze


def folder(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_cpp", ".cpp").replace("_h", ".h")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("model", "files"),
    [
        ('load("a.cpp")', {"a_cpp": ""}),
        ('load("kernels/a.cpp")', {"a_cpp": ""}),
        ('load("csrc/a.cpp")', {"csrc__a_cpp": ""}),
        ('load("kernels/b.cpp")', {"kernels__b_cpp": '#include "a.h"', "a_h": ""}),
    ],
)
def test_freeze_rejects_named_source_outside_kernels(
    tmp_path: Path, model: str, files: dict[str, str]
) -> None:
    (tmp_path / "model_new.py").write_text(model)
    with pytest.raises(AttemptError, match=r"a\.(cpp|h): outside kernels/.*: move it to kern"):
        freeze(folder(tmp_path, **files))


def test_freeze_of_module_includes_kernels_and_ignores_unnamed_sources(tmp_path: Path) -> None:
    (tmp_path / "model_new.py").write_text('load("kernels/a.cpp"); "sub/none.cpp"')
    made = freeze(folder(tmp_path, kernels__a_cpp="", notes_cpp="") / "model_new.py")
    assert [name for name, _ in made.files] == ["kernels/a.cpp", "model_new.py"]


HONEST = "class ModelNew: ...\n"


def candidate(root: Path) -> Path:
    (root / "kernels").mkdir(parents=True)
    (root / "model_new.py").write_text(HONEST)
    (root / "kernels" / "a.cpp").write_text("int a;\n")
    return root


def linked(root: Path, secret: Path) -> None:
    (root / "kernels" / "env.h").symlink_to(secret)


def linked_module(root: Path, secret: Path) -> None:
    (root / "model_new.py").unlink()
    (root / "model_new.py").symlink_to(secret)


def linked_kernels(root: Path, secret: Path) -> None:
    (root / "kernels").rename(root / "elsewhere")
    (root / "kernels").symlink_to(secret.parent)


def linked_below(root: Path, secret: Path) -> None:
    """Add a link to a folder under kernels/; files behind the link are not part of the attempt."""
    (root / "kernels" / "more.h").symlink_to(secret.parent, target_is_directory=True)


def dangling(root: Path, _secret: Path) -> None:
    (root / "kernels" / "gone.h").symlink_to("/nowhere/at/all.h")


@pytest.mark.parametrize("link", [linked, linked_module, linked_kernels, linked_below, dangling])
def test_freeze_rejects_symbolic_links(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    secret = tmp_path / "home" / "secret.h"
    secret.parent.mkdir()
    secret.write_text("the_secret_word")
    root = candidate(tmp_path / "candidate")
    link(root, secret)
    with pytest.raises(
        CandidateFault, match=r": a symbolic link; replace it by the file or folder itself$"
    ):
        freeze(root)


def test_freeze_rejects_single_file_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the_secret_word")
    (tmp_path / "one.py").symlink_to(tmp_path / "secret")
    with pytest.raises(CandidateFault, match="a symbolic link"):
        freeze(tmp_path / "one.py")


def test_freeze_accepts_a_link_as_the_given_folder(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(candidate(tmp_path / "one"))
    assert freeze(tmp_path / "latest") == freeze(tmp_path / "one")


def pipe(file: Path) -> None:
    os.mkfifo(file)


def unix_socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(file))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["kernels/p.h", "model_new.py"])
@pytest.mark.parametrize("make", [pipe, unix_socket])
def test_freeze_rejects_pipes_and_sockets(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    root = candidate(tmp_path)
    (root / name).unlink(missing_ok=True)
    make(root / name)
    with pytest.raises(CandidateFault, match="not a regular file"):
        freeze(root)


def test_freeze_enters_folder_named_like_a_header(tmp_path: Path) -> None:
    root = candidate(tmp_path)
    (root / "kernels" / "sub.h").mkdir()
    (root / "kernels" / "sub.h" / "b.h").write_text("int b;\n")
    names = [name for name, _ in freeze(root).files]
    assert names == ["kernels/a.cpp", "kernels/sub.h/b.h", "model_new.py"]


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("LARGEST_FILE", "larger than"),
        ("LARGEST_ATTEMPT", "larger than .* in all"),
        ("MOST_FILES", "more than 1 sources"),
        ("MOST_ENTRIES", "more than 1 files"),
        ("DEEPEST", "more than 1 levels"),
    ],
)
def test_freeze_limits_sizes_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, message: str
) -> None:
    root = candidate(tmp_path)
    (root / "kernels" / "x" / "y").mkdir(parents=True)
    (root / "kernels" / "b.h").write_text("int b;\n" * 9)
    monkeypatch.setattr(cuagent.attempt, limit, {"LARGEST_FILE": 60}.get(limit, 1))
    with pytest.raises(CandidateFault, match=message):
        freeze(root)


def test_freeze_accepts_hard_link_of_same_owner(tmp_path: Path) -> None:
    root = candidate(tmp_path / "one")
    (root / "kernels" / "b.cpp").hardlink_to(root / "kernels" / "a.cpp")
    assert len(freeze(root).files) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_freeze_rejects_hard_link_to_file_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the_secret_word")
    root = candidate(tmp_path / "one")
    (root / "kernels" / "b.h").hardlink_to(tmp_path / "secret")
    os.chown(root / "kernels", 12345, 12345)
    with pytest.raises(CandidateFault, match="hard link to a file of another user"):
        freeze(root)


def test_freeze_keeps_text_byte_for_byte(tmp_path: Path) -> None:
    root = candidate(tmp_path / "one")
    (root / "kernels" / "a.cpp").write_bytes(b"int a;\r\nint b;\r//\n\xef\xbb\xbf")
    freeze(root).write(tmp_path / "two")
    again = (tmp_path / "two" / "kernels" / "a.cpp").read_bytes()
    assert again == (root / "kernels" / "a.cpp").read_bytes()


@pytest.mark.parametrize("quoted", ["../" * 300 + "etc/a.h", "a" * 5000 + ".h", "/etc/x.h"])
def test_freeze_ignores_quoted_names_outside_the_folder(tmp_path: Path, quoted: str) -> None:
    root = candidate(tmp_path)
    (root / "kernels" / "a.cpp").write_text(f'#include "{quoted}"\n')
    assert len(freeze(root).files) == 2


@pytest.mark.parametrize(
    "names",
    [
        ("../x.py",),
        ("/etc/x",),
        ("a//b",),
        ("./a",),
        ("",),
        ("a\0b",),
        ("a" * 300,),
        ("a/" * 600 + "b",),
        ("a\x1b[2Jb",),
        ("kernels", "kernels/a.cpp"),
        ("model_new.py/a.h",),
        ("\ud800",),
    ],
)
def test_attempt_rejects_invalid_file_names(names: tuple[str, ...]) -> None:
    with pytest.raises(CandidateFault) as caught:
        Attempt(tuple((name, "") for name in names))
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()
