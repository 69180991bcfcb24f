"""NVRTC as a command: `python nvrtc.py LIBNVRTC OPTIONS... -o OUT SOURCE` writes a cubin.

A program of its own, not a call in the process: untrusted text is compiled where a crash or a
runaway costs nothing, and where it can be sandboxed as any compiler. Standard library only.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    library, *options, dash_o, out, source = arguments
    if dash_o != "-o":
        print("usage: nvrtc.py LIBNVRTC OPTIONS... -o OUT SOURCE", file=sys.stderr)
        return 2
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    text = Path(source).read_bytes()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), 0, None, None)
    flags = [*options, *_includes(Path(library), Path(source))]
    array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    status = nvrtc.nvrtcCompileProgram(program, len(flags), array)
    print(
        _text(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace"), file=sys.stderr
    )
    if status == 0:
        Path(out).write_bytes(_text(nvrtc, program, "CUBIN"))
    return int(status != 0)


def _includes(library: Path, source: Path) -> list[str]:
    """Where cuda_fp16.h and its like lie, beside the library or in the toolkit."""
    beside = [library.parent.parent / "include", Path("/usr/local/cuda/include")]
    beside += sorted(library.parent.parent.parent.glob("cuda_runtime/include"))
    return [f"-I{folder}" for folder in [source.parent, *beside] if folder.is_dir()]


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    nvrtc[f"nvrtcGet{what}Size"](program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    nvrtc[f"nvrtcGet{what}"](program, buffer)
    return buffer.raw


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
