"""Confine the calling process before it runs untrusted code.

This is for forked children that have imported torch (it takes a few ms) and, through
`cuagent.sandbox.exec`, for any command. A process cannot leave the sandbox.

Not covered: a separate pid namespace, which only `wrap` with bubblewrap gives; the deadline and the
limits on resident memory and files, which the caller must enforce.
"""

from __future__ import annotations

import os
import re
import resource
import stat
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from cuagent.sandbox import landlock, linux, seccomp
from cuagent.sandbox.policy import (
    GPU_FILES,
    PLAIN_DEVICES,
    PROC,
    PROC_GPU,
    Policy,
    SandboxError,
    Tier,
    environment,
    gpu_devices,
    readable,
)
from cuagent.sandbox.view import enter_view

FEW_UIDS = (61_000, 4_000)
"""Range of user ids for small user namespaces, as (first id, number of ids); other programs rarely
use it."""


def enter(policy: Policy, tier: Tier) -> None:
    """Confine this process to the access rights of `policy`, irrevocably.

    The process must have one thread. Closes all descriptors except `policy.fds`, replaces
    os.environ, and makes the new user id the owner of the folders in `policy.write`. Raises
    SandboxError; then the caller must not run untrusted code.
    """
    try:
        _close_all_but(policy.fds)
        variables = environment(policy)
        os.environ.clear()
        os.environ.update(variables)
        # Python may have cached the temporary folder of the old TMPDIR.
        if module := sys.modules.get("tempfile"):
            module.tempdir = None  # type: ignore[attr-defined]
        os.umask(0o077)
        if tier is Tier.NONE:
            _limit(policy, tier, viewed=False)
            return
        if _threads("self") > 1:
            raise SandboxError("sandbox: the process has several threads; fork first, then enter")
        read = readable(policy)
        # bubblewrap has already made a file system view.
        viewed = tier is Tier.LANDLOCK and enter_view(read, policy.write, _devices(policy))
        _limit(policy, tier, viewed=viewed)
        _isolate(policy, tier, read, viewed=viewed)
    except OSError as error:
        raise SandboxError(f"sandbox: entering tier {tier} failed: {error}") from error


def harden() -> None:
    """Prevent other processes of the same user from reading this process through /proc.

    The referee and the oracle call it, after CUDA is initialised, because CUDA names its threads
    through /proc/self.
    """
    linux.prctl(linux.PR_SET_DUMPABLE, 0)


def own_uid_possible(policy: Policy) -> bool:
    """Return True if the policy asks for a separate user id and this process (root) can assign
    one."""
    return policy.own_uid and os.geteuid() == 0


def _devices(policy: Policy) -> list[Path]:
    return [Path(name) for name in PLAIN_DEVICES] + (gpu_devices() if policy.gpu else [])


def _isolate(policy: Policy, tier: Tier, read: list[Path], *, viewed: bool) -> None:
    if own_uid_possible(policy):
        if not policy.network:
            # Root of a container may lack the right; Landlock and seccomp deny the network too.
            with suppress(PermissionError):
                linux.unshare(linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
        _become_another(policy, read)
    elif viewed and os.geteuid() != 0:
        linux.keep_capabilities(0)  # drop those that the view's user namespace gave
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if landlock.abi():
        landlock.restrict(
            [*read, *_proc(policy)],
            # CUDA names its threads through /proc; without access it fails with error 304.
            [*policy.write, Path("/proc" if policy.children else f"/proc/{os.getpid()}/task")],
            _devices(policy),
            network=policy.network,
        )
    elif tier is Tier.LANDLOCK:
        raise SandboxError(
            "sandbox: this kernel has no Landlock; use Linux 5.13 or later with Landlock enabled"
        )
    seccomp.install(
        network=policy.network,
        gpu=policy.gpu,
        metadata=viewed or tier is Tier.BUBBLEWRAP,
    )


def _proc(policy: Policy) -> list[Path]:
    if policy.children:
        return [Path("/proc")]
    names = PROC + (PROC_GPU if policy.gpu else ())
    return [Path(f"/proc/{os.getpid()}"), *(Path("/proc", name) for name in names)]


def _become_another(policy: Policy, read: list[Path]) -> None:
    """Change to a user id that no other process has, and drop all capabilities.

    CAP_DAC_READ_SEARCH is kept if a path of the policy is private to its owner.
    """
    uid = free_uid(int(Path("/proc/self/uid_map").read_text().split()[2]))
    for folder in policy.write:
        _change_owner(folder, uid)
    # Landlock limits reading. If the interpreter is in a home folder of mode 0700, file permissions
    # would still deny access to it; only this capability overrides them.
    private = [folder for folder in policy.write if not _parents_open(folder.resolve())]
    private += [path for path in read if not _readable_by_all(path)]
    os.setgroups([])
    linux.prctl(linux.PR_SET_KEEPCAPS, 1)
    if any(folder in policy.write for folder in private):
        # Otherwise access() ignores the capability: gcc checks TMPDIR with it, falls back to /tmp,
        # and aborts.
        linux.prctl(linux.PR_SET_SECUREBITS, linux.SECBIT_NO_SETUID_FIXUP)
        _drop_unreadable_from_path([*read, *policy.write])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    try:
        linux.keep_capabilities(1 << linux.CAP_DAC_READ_SEARCH if private else 0)
    except PermissionError as error:
        raise SandboxError(
            f"sandbox: no other user can enter {private[0]}, and this process lacks "
            "CAP_DAC_READ_SEARCH; use a TMPDIR and a Python that every user can read"
        ) from error
    # The change of uid made root the owner of /proc/self, where CUDA writes its threads' names.
    linux.prctl(linux.PR_SET_DUMPABLE, 1)


def free_uid(mapped: int) -> int:
    """Return a user id that no other process has: the pid plus a base far above real users.

    If the user namespace maps too few ids (`mapped` of them) for that, return the next unused id of
    FEW_UIDS.
    """
    if mapped > 2_000_000_000:
        return 1_000_000_000 + os.getpid()
    first, count = FEW_UIDS
    candidates = (first + (os.getpid() + step) % count for step in range(count))
    return next((uid for uid in candidates if not _tasks_of(uid)), first)


def _change_owner(folder: Path, uid: int) -> None:
    os.chown(folder, uid, uid)
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            os.chown(Path(parent, name), uid, uid, follow_symlinks=False)


def _readable_by_all(path: Path) -> bool:
    path = path.resolve()
    needed = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
    return path.stat().st_mode & needed == needed and _parents_open(path)


def _parents_open(path: Path) -> bool:
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)


def _drop_unreadable_from_path(read: list[Path]) -> None:
    """Remove the folders outside `read` from PATH, because Landlock forbids starting programs
    there.

    access() still finds programs in such a folder, so a shell would stop its search there.
    """
    roots = [path.resolve() for path in read]
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    kept = [f for f in folders if any(Path(f).resolve().is_relative_to(root) for root in roots)]
    os.environ["PATH"] = os.pathsep.join(kept)


def _limit(policy: Policy, tier: Tier, *, viewed: bool) -> None:
    processes = policy.processes
    if not _counts_only_descendants(policy, tier, viewed=viewed):
        processes += _tasks_of(os.getuid())
    limits = {
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_NOFILE: max(policy.open_files, GPU_FILES if policy.gpu else 0),
        resource.RLIMIT_FSIZE: policy.file_bytes,
        resource.RLIMIT_CORE: 0,
    }
    if policy.memory_bytes is not None and not policy.gpu:
        limits[resource.RLIMIT_DATA] = policy.memory_bytes
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))


def _counts_only_descendants(policy: Policy, tier: Tier, *, viewed: bool) -> bool:
    """Return True if the kernel's process limit counts only this process and its descendants.

    Otherwise it counts all processes of the user.
    """
    if own_uid_possible(policy):
        return tier is not Tier.NONE
    # Since Linux 5.14 each user namespace has a separate count.
    release = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
    return viewed and os.geteuid() != 0 and release >= (5, 14)


def _tasks_of(uid: int) -> int:
    """Return the number of threads of all processes of the user `uid`."""
    total = 0
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                total += _threads(entry.name)
        except OSError:  # the process has ended
            continue
    return total


def _threads(process: str) -> int:
    return sum(1 for _ in Path("/proc", process, "task").iterdir())


def _close_all_but(open_fds: tuple[int, ...]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    edges = sorted({-1, *open_fds, resource.getrlimit(resource.RLIMIT_NOFILE)[0]})
    for low, high in pairwise(edges):
        # The system call takes an empty range, low to low - 1, as "to the end".
        if low + 1 < high:
            os.closerange(low + 1, high)
