"""Read registers, memory accesses and tensor core instructions from compiled code for sm_90.

Registers and memory are those that `cuobjdump` prints of a cubin, instructions those of its PTX,
whose accesses and products the assembler keeps.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

REGISTERS, THREADS, WARPS, BLOCKS = 65536, 2048, 64, 32
"""Registers, threads, warps and blocks of one multiprocessor."""
SHARED, RESERVED = 228 << 10, 1 << 10
"""Bytes of shared memory of one multiprocessor, and the bytes that each block takes in addition."""
SHARED_OF_BLOCK = {(8, 0): 163 << 10, (8, 7): 163 << 10, (9, 0): 227 << 10, (10, 0): 227 << 10}
"""Largest number of bytes of shared memory of one block, by compute capability."""
SHARED_OF_OTHERS = 99 << 10
"""The same on other GPUs, such as those of workstations (8.6, 8.9, 12.0)."""
STATIC_SHARED = 48 << 10
"""Largest number of bytes of shared memory that a kernel may declare statically."""
USAGE = re.compile(r"Function ([\w$.]+):\s*\n\s*(REG:.*)")
ENTRY = re.compile(r"\.entry ([\w$]+)\(")
ACCESS = re.compile(r"\b(ld|st)(?:\.[\w:]+)*?\.global((?:\.[\w:]+)*)")
COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\.global[^;]*?\],\s*\[[^;]*?\],\s*(0x\w+|\d+)")
BLOCK_COPY = re.compile(r"\bcp\.async\.bulk[\w.:]*\.global\b")
TENSOR_CORE = re.compile(r"\b(wgmma\.mma_async|mma\.sync)\b")
MULTIPLICATION = re.compile(r"\b(?:fma|mul)(?:\.\w+)*\.f32\b")
ARRAY = re.compile(r"\.local \.align \d+ \.b8\s+\w+\[(\d+)\]")


@dataclass(frozen=True)
class Code:
    """Figures of one compiled kernel. Accesses of global memory are counted by their bytes for a
    thread, in the text: a loop counts once."""

    name: str
    registers: int
    stack: int
    """Bytes of local memory of a thread: spilled registers and `arrays`."""
    arrays: int
    """Bytes of arrays in local memory, which have computed indices."""
    static_shared: int
    loads: dict[int, int] = field(default_factory=dict)
    """Number of loads by bytes; copies to shared memory count as loads."""
    stores: dict[int, int] = field(default_factory=dict)
    blocks_copied: int = 0
    """Number of copies by the tensor memory accelerator (TMA)."""
    tensor_core: dict[str, int] = field(default_factory=dict)
    """Number of tensor core instructions by name."""
    multiplications: int = 0
    """Number of float32 multiplications outside of tensor cores."""
    instructions: int = 0

    @property
    def spilled(self) -> int:
        """Bytes of local memory of a thread for registers."""
        return max(0, self.stack - self.arrays)


def read_code(usage: str, ptx: str) -> list[Code]:
    """Return the figures of each kernel in the output of `cuobjdump -res-usage` and in PTX."""
    names = ENTRY.split(ptx)
    texts = dict(zip(names[1::2], names[2::2], strict=True))
    return [_code(name, words, texts[name]) for name, words in USAGE.findall(usage)]


def _code(name: str, usage: str, ptx: str) -> Code:
    sizes = {k: int(v) for k, v in re.findall(r"(\w+)(?:\[0\])?:(\d+)", usage)}
    counts: dict[str, Counter[int]] = {"ld": Counter(), "st": Counter()}
    for kind, suffixes in ACCESS.findall(ptx):
        counts[kind][width(suffixes)] += 1
    counts["ld"].update(int(size, 0) for size in COPY.findall(ptx))
    return Code(
        name,
        sizes["REG"],
        sizes["STACK"] + sizes["LOCAL"],
        sum(map(int, ARRAY.findall(ptx))),
        # The compiler counts the bytes that each block takes in addition.
        sizes["SHARED"] - (RESERVED if sizes["SHARED"] >= RESERVED else 0),
        dict(sorted(counts["ld"].items())),
        dict(sorted(counts["st"].items())),
        len(BLOCK_COPY.findall(ptx)),
        dict(Counter(TENSOR_CORE.findall(ptx))),
        len(MULTIPLICATION.findall(ptx)),
        ptx.count(";"),
    )


def width(suffixes: str) -> int:
    """Return the bytes for a thread of an access with these suffixes, such as `.v4.f32`."""
    size = int(re.findall(r"\d+", suffixes.rsplit(".", 1)[-1])[0]) // 8
    vector = re.search(r"\.v([248])\b", suffixes)
    return size * (int(vector[1]) if vector else 1)


def occupancy(threads: int, registers: int, shared: int) -> tuple[int, float]:
    """Return (blocks on one multiprocessor, share of its warps that they fill).

    `threads`, `shared`: of a block; `registers`: of a thread. Registers are allocated to a warp in
    units of 256.
    """
    warps = -(-threads // 32)
    by_registers = REGISTERS // (warps * -(-registers * 32 // 256) * 256) if registers else BLOCKS
    by_shared = SHARED // (-(-(shared + RESERVED) // 128) * 128)
    blocks = min(BLOCKS, WARPS // warps, THREADS // threads, by_registers, by_shared)
    return blocks, blocks * warps / WARPS
