"""The trusted builder ends soon for any source, with a library or with a diagnostic."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import cuagent.build.builder
from cuagent.attempt import Attempt
from cuagent.build import Build, build, render
from cuagent.build.diagnostics import diagnose
from cuagent.build.resources import short_name
from cuagent.kernels.compiler import CompileFailed, run_compiler
from cuagent.sandbox import Tier, probe
from cuagent.task.task import Device

F = '\nextern "C" void f(float* x) { x[0] = 1; }\n'


def built(cache: Path, text: str, **more: str) -> Build:
    files = {"kernels/a.cpp": text, **{f"kernels/{k}.cpp": v for k, v in more.items()}}
    return build(Attempt(tuple(sorted(files.items()))), Device.CPU, cache=cache)


SKIPPED_INCLUDES = {
    "kernel messages": '#if 0\n#include "/proc/kmsg"\n#endif',
    "own memory": '#if 0\n#include "/proc/self/mem"\n#endif',
    "a terminal": '#if 0\n#include "/dev/tty"\n#endif',
    "a long name": '#if 0\n#include "' + "a" * 5000 + '"\n#endif',
    "a comment": '// #include "/proc/self/mem"\n/*\n#include "/proc/kmsg"\n*/',
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", SKIPPED_INCLUDES.values(), ids=list(SKIPPED_INCLUDES))
def test_builder_does_not_open_skipped_includes(tmp_path: Path, text: str) -> None:
    made = built(tmp_path, text + F)
    assert made.ok, render(made)


REJECTED = {
    "own memory": ('#include "/proc/self/mem"', ""),
    "a device": ('#include "/dev/null"', "reads /dev/null, which is not a source file"),
    "a pseudo file": ('#include "/proc/cpuinfo"\n', ""),
    "data of a device": (
        '__asm__(".section .rodata\\n.incbin \\"/dev/null\\"\\n.previous");',
        "",
    ),
    "a long name": ('#include "' + "a" * 5000 + '"', "aaaa"),
    "a long flag": (
        f"// cuagent: flags -DX={'1' * 200_000}",
        "200004 characters; the limit is 200",
    ),
    "many flags": (f"// cuagent: flags {'-DX=1 ' * 50_000}", "requests 50000 flags"),
    "itself": ('#include "a.cpp"', ""),
    "a line far away": ('#line 4294967295 "/etc/passwd"\nint x = ;', ""),
    "a line elsewhere": ('#line 1 "/proc/kmsg"\nint x = ;', ""),
    "a null character": ('#line 1 "a\\0b"\nint x = ;\0', ""),
    "a message of lines": (
        'static_assert(false, "\\n/proc/kmsg:1: error: x\\na.cpp:' + "9" * 6000 + ': error: y");',
        "",
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("text", "message"), REJECTED.values(), ids=list(REJECTED))
def test_source_that_reads_or_demands_too_much_gives_diagnostic(
    tmp_path: Path, text: str, message: str
) -> None:
    if probe() is Tier.NONE:
        pytest.skip("no isolation on this machine")
    made = built(tmp_path, f"{text}\n{F}")
    assert not made.ok
    errors = [d for d in made.diagnostics if d.severity == "error"]
    assert errors
    assert any(message in d.message for d in errors), render(made)
    for d in made.diagnostics:
        assert len(d.message) <= 300
        assert d.file == "kernels/a.cpp"


def test_all_sources_share_one_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuagent.build.builder, "TOTAL_SECONDS", 2.0)
    files = tuple((f"kernels/{n}.cpp", F) for n in "abcdefgh")
    start = time.monotonic()
    made = build(
        Attempt(files), Device.CPU, cache=tmp_path, confine=lambda *_: ["/bin/sleep", "600"]
    )
    assert time.monotonic() - start < 30
    assert not made.ok
    assert {d.message for d in made.diagnostics} == {
        "the sources of this attempt did not compile within 2 s in all; "
        "instantiate fewer templates or write fewer sources"
    }


def test_slow_compilation_error_says_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(CompileFailed, match=r"within 0 s; instantiate fewer templates"):
        run_compiler(["/bin/sleep", "60"], tmp_path, tmp_path, 0.1)


def test_number_of_sources_is_limited(tmp_path: Path) -> None:
    made = build(Attempt(tuple((f"kernels/{n}.cpp", F) for n in range(101))), Device.CPU)
    assert not made.ok
    assert "101 sources; at most 100 are compiled" in made.diagnostics[0].message


def test_headers_outside_kernels_are_rejected(tmp_path: Path) -> None:
    """The cache key of a source covers only the files below kernels/."""
    attempt = Attempt((("b.h", ""), ("kernels/a.cpp", F)))
    made = build(attempt, Device.CPU, cache=tmp_path)
    assert "b.h is outside kernels/; move all sources there" in made.diagnostics[0].message


def test_endless_compiler_output_is_read_up_to_a_limit(tmp_path: Path) -> None:
    made = build(
        Attempt((("kernels/a.cpp", F),)),
        Device.CPU,
        cache=tmp_path,
        confine=lambda *_: ["/bin/sh", "-c", "yes 'kernels/a.cpp:1:1: warning: x'"],
    )
    assert not made.ok


@pytest.mark.timeout(60)
def test_diagnose_takes_linear_time(tmp_path: Path) -> None:
    attempt = Attempt((("kernels/a.cpp", "int x;\n" * 100_000),))
    line = "a.cpp:{}:1: warning: w{} instantiation of at line 1" + " instantiation of x" * 200
    text = "\n".join(line.format(n, n) for n in range(30_000))
    start = time.monotonic()
    assert len(diagnose(text, attempt, "kernels/a.cpp", tmp_path)) == 3
    text = "instantiation of " * 200_000 + "\na.cpp(1): error: x"
    assert diagnose(text, attempt, "kernels/a.cpp", tmp_path)
    assert time.monotonic() - start < 20


def test_long_names_are_not_demangled() -> None:
    assert len(short_name("_Z1f" + "P" * 2_000_000 + "i")) <= 1_000
