"""Compile sources to loadable kernels with nvcc, NVRTC and g++; cache; short diagnostics."""

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
