"""Share GPU memory by IPC with a sandboxed child; `test_sandbox_enter` runs this script.

It prints the value that the child read, the sum of the child's kernel, and the value that the owner
read afterwards.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from pathlib import Path

import torch

from cuagent.sandbox import Policy, Tier, enter

WORDS = 1024


class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 64),)


def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def share(channel: socket.socket) -> None:
    torch.zeros(1, device="cuda")
    cuda, address, handle = driver(), ctypes.c_uint64(), Handle()
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 * WORDS)) == 0
    assert cuda.cuMemsetD32_v2(address, ctypes.c_uint(7), ctypes.c_size_t(WORDS)) == 0
    assert cuda.cuIpcGetMemHandle(ctypes.byref(handle), address) == 0
    torch.cuda.synchronize()
    channel.send(bytes(handle))
    channel.recv(1)
    print(read(cuda, address), flush=True)


def open_shared(channel: socket.socket) -> None:
    handle = Handle.from_buffer_copy(channel.recv(64))
    total = (torch.ones(1000, device="cuda") * 2).sum().item()
    cuda, address = driver(), ctypes.c_uint64()
    code = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, ctypes.c_uint(1))
    assert code == 0, f"cuIpcOpenMemHandle: {code}"
    print(read(cuda, address), total, flush=True)
    assert cuda.cuMemsetD32_v2(address, ctypes.c_uint(9), ctypes.c_size_t(WORDS)) == 0
    torch.cuda.synchronize()
    channel.send(b".")


def read(cuda: ctypes.CDLL, address: ctypes.c_uint64) -> int:
    value = ctypes.c_uint()
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(value), address, ctypes.c_size_t(4)) == 0
    return value.value


if __name__ == "__main__":
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        policy = Policy(write=(Path(sys.argv[1]),), gpu=True, fds=(0, 1, 2, theirs.fileno()))
        enter(policy, Tier(sys.argv[2]))
        open_shared(theirs)
        os._exit(0)
    theirs.close()
    share(ours)
    os.waitpid(child, 0)
