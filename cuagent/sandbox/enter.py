"""Enter the sandbox: what a process can do to itself before it runs untrusted code.

For a forked child that has torch imported (a few ms) and, through `cuagent.sandbox.exec`, for any
command. There is no way back. Not here: process numbers of its own, which only `wrap` with
bubblewrap gives, the deadline, and the watch over memory and files, which are the caller's.
"""

from __future__ import annotations

import os
import re
import resource
import stat
import sys
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
"""First and number of the user ids that a user namespace has too, and no one usually uses."""


def enter(policy: Policy, tier: Tier) -> None:
    """Apply `policy` to this process for good. Raises SandboxError: then run nothing untrusted.

    The process must have one thread. Closes all descriptors but `policy.fds`, replaces
    os.environ, and gives the folders of `policy.write` to the new user id.
    """
    try:
        _close_all_but(policy.fds)
        kept = environment(policy)
        os.environ.clear()
        os.environ.update(kept)
        # Python found its temporary folder before TMPDIR changed, if it looked.
        if known := sys.modules.get("tempfile"):
            known.tempdir = None  # type: ignore[attr-defined]
        os.umask(0o077)
        if tier is Tier.NONE:
            _limit(policy, tier, viewed=False)
            return
        if _threads("self") > 1:
            raise SandboxError("sandbox: entered with several threads; fork first, then enter")
        read = readable(policy)
        # bubblewrap has made such a view already.
        viewed = tier is Tier.LANDLOCK and enter_view(read, policy.write, _devices(policy))
        _limit(policy, tier, viewed=viewed)
        _isolate(policy, tier, read, viewed=viewed)
    except OSError as error:
        raise SandboxError(f"sandbox: tier {tier} cannot be entered: {error}") from error


def harden() -> None:
    """Make this process unreadable through /proc for others of its uid. For referee and oracle.

    Call it after CUDA is initialised: CUDA names its threads through /proc/self.
    """
    linux.prctl(linux.PR_SET_DUMPABLE, 0)


def own_uid_possible(policy: Policy) -> bool:
    return policy.own_uid and os.geteuid() == 0


def _devices(policy: Policy) -> list[Path]:
    return [Path(name) for name in PLAIN_DEVICES] + (gpu_devices() if policy.gpu else [])


def _isolate(policy: Policy, tier: Tier, read: list[Path], *, viewed: bool) -> None:
    if own_uid_possible(policy):
        if not policy.network:
            linux.unshare(linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
        _become_another(policy, read)
    elif viewed and os.geteuid() != 0:
        linux.keep_capabilities(0)  # those of the user namespace that the view needed
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if landlock.abi():
        landlock.restrict(
            [*read, *_proc(policy)],
            # CUDA names its threads through /proc, and gives up (304) where it may not.
            [*policy.write, Path("/proc" if policy.children else f"/proc/{os.getpid()}/task")],
            _devices(policy),
            network=policy.network,
        )
    elif tier is Tier.LANDLOCK:
        raise SandboxError("sandbox: this kernel has no Landlock")
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
    """Take a uid that no other process has, and give up every capability but perhaps one."""
    uid = free_uid(int(Path("/proc/self/uid_map").read_text().split()[2]))
    for folder in policy.write:
        _give(folder, uid)
    # Landlock decides what may be read; where the interpreter lies in a home of mode 0700, file
    # permissions would refuse it all the same, and only this capability passes them.
    closed = any(not _open_to_all(path) for path in [*read, *policy.write])
    os.setgroups([])
    linux.prctl(linux.PR_SET_KEEPCAPS, 1)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    linux.keep_capabilities(1 << linux.CAP_DAC_READ_SEARCH if closed else 0)
    # The change of uid made /proc/self root's, where CUDA must write its threads' names.
    linux.prctl(linux.PR_SET_DUMPABLE, 1)


def free_uid(mapped: int) -> int:
    """One uid per living process: its pid over a base far from real users.

    Where a user namespace has too few (`mapped`) for that, the next one that no process has.
    """
    if mapped > 2_000_000_000:
        return 1_000_000_000 + os.getpid()
    first, count = FEW_UIDS
    own = (first + (os.getpid() + step) % count for step in range(count))
    return next((uid for uid in own if not _tasks_of(uid)), first)


def _give(folder: Path, uid: int) -> None:
    os.chown(folder, uid, uid)
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            os.chown(Path(parent, name), uid, uid, follow_symlinks=False)


def _open_to_all(path: Path) -> bool:
    path = path.resolve()
    wanted = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
    return path.stat().st_mode & wanted == wanted and all(
        parent.stat().st_mode & stat.S_IXOTH for parent in path.parents
    )


def _limit(policy: Policy, tier: Tier, *, viewed: bool) -> None:
    processes = policy.processes
    if not _counted_alone(policy, tier, viewed=viewed):
        processes += _tasks_of(os.getuid())
    limits = {
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_NOFILE: max(policy.open_files, GPU_FILES if policy.gpu else 0),
        resource.RLIMIT_FSIZE: policy.file_bytes,
        resource.RLIMIT_CORE: 0,
    }
    if policy.memory_bytes is not None and not policy.gpu:
        limits[resource.RLIMIT_DATA] = policy.memory_bytes
    for kind, wanted in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def _counted_alone(policy: Policy, tier: Tier, *, viewed: bool) -> bool:
    """Whether the limit on processes counts no process but those that come of this one."""
    if own_uid_possible(policy):
        return tier is not Tier.NONE
    # Since Linux 5.14 the limit counts in each user namespace apart.
    release = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
    return viewed and os.geteuid() != 0 and release >= (5, 14)


def _tasks_of(uid: int) -> int:
    """Threads that `uid` has already; the limit counts them in."""
    total = 0
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                total += _threads(entry.name)
        except OSError:  # it ended meanwhile
            continue
    return total


def _threads(process: str) -> int:
    return sum(1 for _ in Path("/proc", process, "task").iterdir())


def _close_all_but(kept: tuple[int, ...]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    edges = sorted({-1, *kept, resource.getrlimit(resource.RLIMIT_NOFILE)[0]})
    for low, high in pairwise(edges):
        # An empty range, low to low - 1, means "to the end" for the system call underneath.
        if low + 1 < high:
            os.closerange(low + 1, high)
