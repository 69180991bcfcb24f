"""Compile an attempt's sources to loadable libraries with nvcc, NVRTC and g++.

Compiled libraries are cached, and compiler output is reduced to short diagnostics.
"""

from cuagent.build.builder import build, environment, versions
from cuagent.build.confine import Confine, compiler_folders, sandboxed
from cuagent.build.render import render
from cuagent.build.result import Build, Diagnostic, KernelResources, Library

__all__ = [
    "Build",
    "Confine",
    "Diagnostic",
    "KernelResources",
    "Library",
    "build",
    "compiler_folders",
    "environment",
    "render",
    "sandboxed",
    "versions",
]
