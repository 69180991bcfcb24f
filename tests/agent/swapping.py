"""`python swapping.py FIRST SECOND`: exchange two names until killed, as fast as the kernel can."""

import ctypes
import os
import sys

EXCHANGE = 2

if __name__ == "__main__":
    first, second = os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2])
    renameat2 = ctypes.CDLL(None).renameat2
    print("ready", flush=True)
    while True:
        renameat2(-100, first, -100, second, EXCHANGE)
