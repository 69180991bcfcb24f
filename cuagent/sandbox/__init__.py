"""Untrusted code is held here: candidates, their builds, and the agent's bash.

Three tiers, probed and stamped on every verdict: bubblewrap; Landlock with seccomp; none, which is
called UNISOLATED. Standard library only, so that a sandboxed command starts at once.
"""

from cuagent.sandbox.enter import enter, harden
from cuagent.sandbox.memory import memory_bound, resident
from cuagent.sandbox.policy import Policy, SandboxError, Tier
from cuagent.sandbox.probe import Escape, probe, probe_forked, selftest, stamp
from cuagent.sandbox.wrap import wrap

__all__ = [
    "Escape",
    "Policy",
    "SandboxError",
    "Tier",
    "enter",
    "harden",
    "memory_bound",
    "probe",
    "probe_forked",
    "resident",
    "selftest",
    "stamp",
    "wrap",
]
