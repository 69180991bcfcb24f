"""Wrap a command, such as a compiler or the agent's bash, to run inside the sandbox.

Invariant: the wrapped command has the pid of the started process (tier landlock) or dies with it
(tier bubblewrap), so that killing the process group ends it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cuagent.sandbox.policy import Policy, SandboxError, Tier, gpu_devices, readable

ENTRY = Path(__file__).with_name("exec.py")


def wrap(argv: Sequence[str], policy: Policy, tier: Tier) -> list[str]:
    """Return a command line that runs the command `argv` under `policy`.

    The working folder of the new process should be one that `policy` allows. The caller must also
    pass on descriptors of `policy.fds` above 2 (`pass_fds`). Raises SandboxError if bwrap is
    missing.
    """
    # The readable paths are listed here, because this interpreter has its site-packages.
    full = replace(policy, read=tuple(readable(policy)), interpreter=False)
    if tier is not Tier.BUBBLEWRAP:
        return _enter_and_exec(argv, full, tier)
    bwrap = bubblewrap()
    if bwrap is None:
        raise SandboxError("sandbox: bwrap is not installed; install bubblewrap")
    interpreter = readable(Policy())
    inner = replace(full, own_uid=False)
    return [
        bwrap,
        *("--unshare-user", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if policy.network else ("--unshare-net",)),
        # CUDA memory handles do not work across pid namespaces.
        *(() if policy.gpu else ("--unshare-pid",)),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/run"),
        *_binds("--ro-bind", [*full.read, *interpreter, ENTRY.parent.parent / "__init__.py"]),
        *_binds("--ro-bind", [ENTRY.parent]),
        *_binds("--bind", policy.write),
        *_binds("--dev-bind", gpu_devices() if policy.gpu else []),
        "--",
        *_enter_and_exec(argv, inner, tier),
    ]


def bubblewrap() -> str | None:
    """Return the path of bwrap; None if it is not installed."""
    from shutil import which  # not at the top: each import delays every sandboxed command

    return which("bwrap")


def _enter_and_exec(argv: Sequence[str], policy: Policy, tier: Tier) -> list[str]:
    return [sys.executable, "-I", "-S", str(ENTRY), policy.to_json(), tier.value, "--", *argv]


def _binds(flag: str, paths: Sequence[Path]) -> list[str]:
    """Return arguments of bwrap that mount each path at its own place, parents first.

    Otherwise the mount of a parent would hide its child's.
    """
    return [
        word
        for path in sorted(set(paths))
        if not str(path).startswith(("/proc", "/dev/")) or flag == "--dev-bind"
        for word in (flag, str(path), str(path))
    ]
