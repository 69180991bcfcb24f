"""Confine untrusted code: candidates, their builds, and the agent's bash.

There are three tiers: bubblewrap; Landlock with seccomp; none, which verdicts call UNISOLATED.
`probe` finds the strongest tier of this machine, and each verdict states its tier. The package uses
the standard library only, so that a sandboxed command starts quickly.
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
