"""A library from the cache is never that of other files, for every way to include a header."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cuagent.attempt import Attempt
from cuagent.build import Build, build, environment, render
from cuagent.task.task import Device

USE = '\nextern "C" void f(float* x) { x[0] = value(); }\n'
RIGHT, WRONG = "static float value() { return 7; }\n", "static float value() { return 0; }\n"

INCLUDES = {
    "macro": f'#define H "impl.h"\n#include H{USE}',
    "import": f'#import "impl.h"{USE}',
    "comment": f'#include /* here */ "impl.h"{USE}',
    "splice": f'#inc\\\nlude "impl.h"{USE}',
    "digraph": f'%:include "impl.h"{USE}',
}
INCBIN = """
__asm__(".section .rodata\\nblob: .incbin \\"impl.h\\"\\n.byte 0\\n.previous");
extern "C" const char blob[];
extern "C" void f(float* x) { x[0] = blob[30] - '0'; }
"""
HAS = f"""
#if __has_include("impl.h")
{RIGHT}
#else
{WRONG}
#endif
{USE}
"""


def attempt(source: str, header: str | None, name: str = "impl.h") -> Attempt:
    files = {"model_new.py": "class ModelNew: ...\n", "kernels/a.cpp": source}
    if header is not None:
        files[f"kernels/{name}"] = header
    return Attempt(tuple(sorted(files.items())))


def value(made: Build, folder: Path) -> float:
    """Call a copy of the built library; the dynamic linker keeps libraries by path."""
    assert made.ok, render(made)
    copy = shutil.copy(made.libraries[0].path, folder / f"{len(list(folder.iterdir()))}.so")
    out = ctypes.c_float()
    ctypes.CDLL(copy).f(ctypes.byref(out))
    return out.value


@pytest.mark.parametrize("source", [*INCLUDES.values(), INCBIN], ids=[*INCLUDES, "incbin"])
def test_changed_header_gives_new_library(tmp_path: Path, source: str) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    for header, expected in ((RIGHT, 7), (WRONG, 0), (RIGHT, 7)):
        made = build(attempt(source, header), Device.CPU, cache=tmp_path / "cache")
        assert value(made, copies) == expected
    assert made.libraries[0].cached


def test_added_or_moved_header_gives_new_library(tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    cases = (None, "impl.h", 0), (RIGHT, "impl.h", 7), (RIGHT, "other/impl.h", 0)
    for header, name, expected in cases:
        made = build(attempt(HAS, header, name), Device.CPU, cache=tmp_path / "cache")
        assert value(made, copies) == expected


def test_compiler_reads_no_python_text_of_attempt(tmp_path: Path) -> None:
    source = (
        '__asm__(".section .rodata\\nblob: .incbin \\"../model_new.py\\"\\n.byte 1\\n.previous");\n'
    )
    source += 'extern "C" const char blob[];\nextern "C" void f(float* x) { x[0] = blob[0]; }\n'
    made = build(attempt(source, None), Device.CPU, cache=tmp_path / "cache")
    assert value(made, tmp_path) == 1


def test_loader_uses_library_of_its_own_attempt(tmp_path: Path, python: list[str]) -> None:
    """Load a source in a subfolder of kernels/ that includes a header of its parent folder."""
    program = (
        "import torch\nfrom cuagent.kernels import load\nx = torch.ones(1)\n"
        "load('kernels/sub/a.cpp').f(x); print(x.item())\n"
    )
    for header, expected in ((RIGHT, "7.0"), (WRONG, "0.0")):
        files = {
            "model_new.py": program,
            "kernels/sub/a.cpp": f'#define H "../impl.h"\n#include H{USE}',
            "kernels/impl.h": header,
        }
        given = Attempt(tuple(sorted(files.items())))
        made = build(given, Device.CPU, cache=tmp_path / "cache")
        folder = tmp_path / expected
        given.write(folder)
        out = subprocess.run(
            [*python, str(folder / "model_new.py")],
            capture_output=True,
            text=True,
            env={**os.environ, **environment(made), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)},
        )
        assert out.stdout.strip() == expected, out.stderr


LOAD = "import torch\nfrom cuagent.kernels import load\nx = torch.ones(1)\n"
LOAD += "load('a.cpp').f(x); print(x.item())\n"


def loaded(folder: Path, python: list[str], **more: str) -> str:
    (folder / "main.py").write_text(LOAD)
    done = subprocess.run(
        [*python, str(folder / "main.py")],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **more},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


OUTSIDE = {
    "parent folder": '#include "../impl.h"',
    "a macro": '#define H "../impl.h"\n#include H',
    "other suffix": '#include "../impl.txt"',
    "__has_include of a file": (f'#if __has_include("../impl.h")\n{WRONG}\n#else\n{RIGHT}\n#endif'),
}


@pytest.mark.parametrize("include", OUTSIDE.values(), ids=list(OUTSIDE))
def test_loader_notices_changed_file_outside_the_folder(
    tmp_path: Path, python: list[str], include: str
) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "a.cpp").write_text(include + USE)
    if "has_include" not in include:
        (tmp_path / "impl.h").write_text(RIGHT)
        (tmp_path / "impl.txt").write_text(RIGHT)
    assert loaded(folder, python) == "7.0"
    assert loaded(folder, python) == "7.0"
    for name in ("impl.h", "impl.txt"):
        (tmp_path / name).write_text(WRONG)
    assert loaded(folder, python) == "0.0"


def test_loader_notices_changed_embedded_data(tmp_path: Path, python: list[str]) -> None:
    (tmp_path / "a.cpp").write_text(INCBIN.replace("impl.h", "impl.bin"))
    for header, expected in ((RIGHT, "7.0"), (WRONG, "0.0")):
        (tmp_path / "impl.bin").write_text(header)
        assert loaded(tmp_path, python) == expected


def test_builder_ignores_library_of_loader_with_other_files(
    tmp_path: Path, python: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header next to the user's folder is not part of an attempt with the same source."""
    folder = tmp_path / "user" / "kernels"
    folder.mkdir(parents=True)
    source = HAS.replace("impl.h", "../impl.h")
    (folder / "a.cpp").write_text(source)
    (folder.parent / "impl.h").write_text(RIGHT)
    (folder.parent / "model_new.py").write_text("")
    cache = str(tmp_path / "cache")
    assert loaded(folder, python, XDG_CACHE_HOME=cache) == "7.0"
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert value(build(attempt(source, None), Device.CPU), tmp_path / "user") == 0


def test_cached_load_runs_no_compiler(tmp_path: Path, python: list[str]) -> None:
    (tmp_path / "a.cpp").write_text(f'#include <cmath>\n#include "impl.h"{USE}')
    (tmp_path / "impl.h").write_text(RIGHT)
    assert loaded(tmp_path, python) == "7.0"
    library = next(tmp_path.glob("cache/cuagent/kernels/*/*/*.so"))
    made = library.stat().st_mtime_ns
    assert loaded(tmp_path, python) == "7.0"
    assert library.stat().st_mtime_ns == made


def test_library_does_not_depend_on_date_or_folder(tmp_path: Path) -> None:
    text = 'extern "C" const char* const said = __FILE__ __DATE__ __TIME__;\n' + RIGHT + USE
    made = [
        build(attempt(text, None), Device.CPU, cache=tmp_path / str(n)).libraries[0] for n in (1, 2)
    ]
    first, second = (library.path.read_bytes() for library in made)
    assert first == second
    assert b"./a.cpp" in first
    assert b"Jan  1 1970" in first


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("form", ["launcher", "kernel"])
def test_changed_header_gives_new_cuda_library(tmp_path: Path, form: str) -> None:
    kernel = "__global__ void k(float* x) { *x = value(); }"
    text = f'#define H "impl.h"\n#include H\nextern "C" {kernel}\n'
    if form == "launcher":
        text += 'extern "C" void f(float* x, cudaStream_t s) { k<<<1, 1, 0, s>>>(x); }\n'
    made = []
    for header in (RIGHT, WRONG, RIGHT):
        files = {"kernels/a.cu": text, "kernels/impl.h": "__device__ " + header}
        built = build(Attempt(tuple(sorted(files.items()))), Device.CUDA, cache=tmp_path)
        assert built.ok, render(built)
        made.append(built.libraries[0])
    assert made[0].path.read_bytes() != made[1].path.read_bytes()
    assert made[2].cached
