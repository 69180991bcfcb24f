"""Run NVRTC as a command: `python nvrtc.py LIBNVRTC OPTIONS... -o OUT SOURCE` writes a cubin.

A separate program compiles untrusted text without risk: a crash or an endless compilation does not
harm the caller, and the program can be sandboxed like any compiler. It uses the standard library
only.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

INTEGERS = """#pragma once
typedef signed char int8_t; typedef unsigned char uint8_t;
typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t;
typedef long int64_t; typedef unsigned long uint64_t; typedef unsigned long uintptr_t;
namespace std {
using ::int8_t; using ::uint8_t; using ::int16_t; using ::uint16_t;
using ::int32_t; using ::uint32_t; using ::int64_t; using ::uint64_t; using ::uintptr_t;
}
"""
LIMITS = """#pragma once
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623158e+308
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define LONG_MAX 9223372036854775807L
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
"""
HEADERS = {
    **dict.fromkeys(("cstdint", "stdint.h"), INTEGERS),
    **dict.fromkeys(("cmath", "math.h", "cfloat", "float.h", "climits", "limits.h"), LIMITS),
    "cuda_runtime.h": "",
}
"""Text of common headers that NVRTC lacks, by name. NVRTC has the math functions built in."""


def main(arguments: list[str]) -> int:
    library, *options, dash_o, out, source = arguments
    if dash_o != "-o":
        print("usage: nvrtc.py LIBNVRTC OPTIONS... -o OUT SOURCE", file=sys.stderr)
        return 2
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    text = Path(source).read_bytes()
    strings = ctypes.c_char_p * len(HEADERS)
    texts = strings(*(body.encode() for body in HEADERS.values()))
    names = strings(*(name.encode() for name in HEADERS))
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text, source.encode(), len(HEADERS), texts, names
    )
    flags = [*options, *_includes(Path(library), Path(source))]
    array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    status = nvrtc.nvrtcCompileProgram(program, len(flags), array)
    print(
        _result(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace"),
        file=sys.stderr,
    )
    if status == 0:
        Path(out).write_bytes(_result(nvrtc, program, "CUBIN"))
    return int(status != 0)


def _includes(library: Path, source: Path) -> list[str]:
    """Return include options for the folders of CUDA's headers, such as cuda_fp16.h.

    They are those of NVIDIA's wheel and of the toolkit.
    """
    folders = [library.parent.parent / "include", Path("/usr/local/cuda/include")]
    folders += sorted(library.parent.parent.parent.glob("cuda_runtime/include"))
    return [f"-I{folder}" for folder in [source.parent, *folders] if folder.is_dir()]


def _result(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, name: str) -> bytes:
    size = ctypes.c_size_t()
    nvrtc[f"nvrtcGet{name}Size"](program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    nvrtc[f"nvrtcGet{name}"](program, buffer)
    return buffer.raw


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
