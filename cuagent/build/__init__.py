"""Sources to loadable kernels: nvcc, NVRTC, g++; the cache; short diagnostics."""

from cuagent.build.builder import Confine, build, environment, versions
from cuagent.build.render import render
from cuagent.build.result import Build, Diagnostic, KernelResources, Library

__all__ = [
    "Build",
    "Confine",
    "Diagnostic",
    "KernelResources",
    "Library",
    "build",
    "environment",
    "render",
    "versions",
]
