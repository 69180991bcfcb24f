"""The trusted builder: every source of an attempt to a library, or short diagnostics.

It uses the loader's own recipe, toolchain and key (`cuagent.kernels.compiler`), so that the process
that runs the attempt finds each library through `environment(build)` and never compiles.
Not covered: Triton and `load_inline` in `model_new.py`, which compile where they run.
Invariant: the text of an attempt meets a compiler only inside `confine`, with size and time capped.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.build.confine import Confine, runner, sandboxed
from cuagent.build.diagnostics import diagnose, foreign_headers
from cuagent.build.resources import resources
from cuagent.build.result import Build, Diagnostic, Library
from cuagent.build.vectors import reporting, reports
from cuagent.kernels import compiler, prototypes
from cuagent.task.task import Device


def build(
    attempt: Attempt, device: Device, *, cache: Path | None = None, confine: Confine = sandboxed
) -> Build:
    """Compile all sources in parallel, those found in the cache excepted.

    `cache` is the loader's own by default. On a CPU task `.cu` sources are left
    out, with a warning. Raises CompilerMissing, which is no fault of the attempt.
    """
    start = time.perf_counter()
    root = cache or compiler.cache_root()
    sources = [s for s in attempt.kernels if device is Device.CUDA or s.endswith(".cpp")]
    diagnostics = [
        Diagnostic(s, 0, "not built: the task runs on the CPU", "", "warning")
        for s in attempt.kernels
        if s not in sources
    ]
    with tempfile.TemporaryDirectory(prefix="cuagent-build-") as folder:
        attempt.write(Path(folder))
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            results = list(pool.map(lambda s: _one(Path(folder), s, root, confine), sources))
    libraries = [r for r, _ in results if r is not None]
    diagnostics += [d for _, found in results for d in found]
    return Build(
        attempt=attempt.digest,
        libraries=tuple(libraries),
        diagnostics=tuple(diagnostics),
        ok=len(libraries) == len(sources),
        seconds=time.perf_counter() - start,
    )


def environment(build: Build) -> dict[str, str]:
    """Variables under which the loader finds the libraries of this build in their folders."""
    folders = dict.fromkeys(str(library.path.parent) for library in build.libraries)
    return {compiler.BUILD: os.pathsep.join(folders)}


def versions() -> dict[str, str]:
    """The compilers found here, by name; one that is missing is left out."""
    found = {"platform": platform.platform()}
    for form in ("g++", "nvcc", "nvrtc"):
        try:
            tools = compiler.toolchain(form)
        except compiler.CompilerMissing:
            continue
        found[form] = tools.version
        if form != "g++":
            found["arch"] = tools.target
    return found


def _one(
    folder: Path, source: str, root: Path, confine: Confine
) -> tuple[Library | None, list[Diagnostic]]:
    start = time.perf_counter()
    path = folder / source
    foreign = foreign_headers(source, path.read_text())
    if foreign:
        return None, foreign
    try:
        prototypes.parse(path.read_text(), source)
        how = compiler.recipe(path)
        tools = compiler.toolchain(how.form)
        library = root / tools.name / how.file
        cached = library.is_file()
        if not cached:
            run = runner(folder, confine)
            if reports(tools):
                run = reporting(run, path, library)
            compiler.compile_library(how, tools, library, run)
    except prototypes.PrototypeError as error:
        return None, [Diagnostic(source, 0, str(error).removeprefix(f"{source}: "), "")]
    except compiler.CompileFailed as error:
        return None, diagnose(error.output, folder, source)
    log = library.with_suffix(".log")
    text = log.read_text() if log.is_file() else ""
    warnings = [d for d in diagnose(text, folder, source) if d.severity == "warning"]
    seconds = time.perf_counter() - start
    return Library(source, library, how.key, cached, seconds, resources(text)), warnings
