"""Give the calling process a file system view with only the paths of its policy.

Landlock restricts which files a process can open. It does not restrict metadata: chmod, utime and
setxattr on files outside succeed for a process of the same user, and stat, readlink and connect see
every name. In a separate mount namespace a process sees only the folders of its policy, read-only
except for its writable folders. Root makes such a namespace directly, another user through a user
namespace. If neither is possible (a container's filter, an administrator's setting), the caller
blocks changes of metadata with seccomp instead (`cuagent.sandbox.seccomp`).

Invariant: if `enter_view` returns False, the view of the process is unchanged.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from cuagent.sandbox.linux import CLONE_NEWNS, CLONE_NEWUSER, X86, syscall, unshare

MOUNT, UMOUNT2, PIVOT_ROOT = (165, 166, 155) if X86 else (40, 39, 41)
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
WORKING_FOLDER = -100
"""AT_FDCWD: the descriptor number that stands for the working folder in a system call."""
RECURSIVE, EMPTY_PATH = 0x8000, 0x1000
CLONE, CLOSE_ON_EXEC = 0x1, os.O_CLOEXEC
FROM_DESCRIPTOR = 0x4
"""MOVE_MOUNT_F_EMPTY_PATH: the mount to move is given as a descriptor."""
MS_NOSUID, MS_NODEV, MS_PRIVATE_BELOW = 0x2, 0x4, 0x44000
DETACH = 0x2
ATTR_READ_ONLY, ATTR_NOSUID, ATTR_NODEV = 0x1, 0x2, 0x4
STAGES = ("/tmp", "/var", "/usr")
"""Candidate folders for assembling the new root. The first that exists is used, and its content is
hidden during the assembly only."""
EMPTY = ("/tmp", "/var/tmp", "/run", "/home", "/dev/shm")
"""Folders that programs expect to exist. The view contains them as empty folders."""
STREAMS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
MOST_LINKS = 40
"""Largest number of symbolic links that are followed for one path; the limit of Linux."""


class Access(IntEnum):
    """Access to a mounted path. If a path is requested twice, the larger value applies."""

    READ = 0
    DEVICE = 1
    WRITE = 2


ATTRIBUTES = {
    Access.READ: ATTR_READ_ONLY | ATTR_NOSUID | ATTR_NODEV,
    # A device on a read-only mount is still writable; its mode and times are not.
    Access.DEVICE: ATTR_READ_ONLY | ATTR_NOSUID,
    Access.WRITE: ATTR_NOSUID | ATTR_NODEV,
}


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def enter_view(read: Iterable[Path], write: Iterable[Path], devices: Iterable[Path]) -> bool:
    """Restrict this process's view to these paths and /proc; return False if that is impossible.

    The process must have one thread. A process that is not root then has every capability in a new
    user namespace; the caller must drop them. The working folder stays if it is visible, else it
    becomes `/`. Raises OSError if the view was made only in part.
    """
    mounts, links = _plan(
        [(path, Access.READ) for path in read]
        + [(path, Access.DEVICE) for path in devices]
        + [(path, Access.WRITE) for path in write]
    )
    if os.geteuid() == 0:
        return _enter(mounts, links)
    if not _can_enter(mounts, links):
        return False
    if not _enter(mounts, links):
        raise OSError("the file system view failed after it had worked in a child process")
    return True


def _enter(mounts: dict[str, Access], links: dict[str, str]) -> bool:
    try:
        _unshare()
        _mount(b"none", b"/", None, MS_PRIVATE_BELOW)
    except OSError:
        return False
    folder, mask = Path.cwd(), os.umask(0o022)  # other user ids must be able to enter folders
    try:
        return _assemble(mounts, links)
    finally:
        os.umask(mask)
        with suppress(OSError):
            os.chdir(folder)


def _plan(wanted: list[tuple[Path, Access]]) -> tuple[dict[str, Access], dict[str, str]]:
    """Return the real paths to mount with their access, parents first, and the symbolic links that
    lead to them."""
    links = dict(STREAMS)
    accesses: dict[str, Access] = {}
    for path, access in wanted:
        real = _resolve(path.absolute(), links)
        if real is not None and not real.startswith("/proc/"):
            accesses[real] = max(access, accesses.get(real, access))
    mounts: dict[str, Access] = {}
    for real, access in sorted(accesses.items()):
        above = next((mounts[str(p)] for p in Path(real).parents if str(p) in mounts), None)
        if above is None or (above is Access.READ and access is Access.WRITE):
            mounts[real] = access
    return mounts, links


def _resolve(path: Path, links: dict[str, str]) -> str | None:
    """Return the real path of `path`, and add the symbolic links on the way to `links`.

    Returns None if the path does not exist.
    """
    pending, resolved, followed = list(reversed(path.parts[1:])), Path("/"), 0
    while pending:
        part = pending.pop()
        entry = resolved.parent if part == ".." else resolved / part
        try:
            target = entry.readlink()
        except OSError:
            resolved = entry
            continue
        followed += 1
        if followed > MOST_LINKS:
            return None
        links[str(entry)] = str(target)
        resolved = Path("/") if target.is_absolute() else resolved
        pending.extend(part for part in reversed(target.parts) if part != "/")
    return str(resolved) if resolved.exists() and resolved != Path("/") else None


def _can_enter(mounts: dict[str, Access], links: dict[str, str]) -> bool:
    """Return True if a child process can make the view in a new user namespace.

    Some systems give namespaces without rights, or deny only some of the calls. This process cannot
    try it, because it cannot leave a namespace again, in which it has every capability and another
    limit of processes.
    """
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os._exit(0 if _enter(mounts, links) else 1)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _unshare() -> None:
    if os.geteuid() == 0:
        unshare(CLONE_NEWNS)
        return
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _assemble(mounts: dict[str, Access], links: dict[str, str]) -> bool:
    """Assemble the new root and enter it; return True. If a step fails, undo all and return
    False."""
    trees: dict[str, int] = {}
    stage, mounted = _stage(), False
    try:
        for real, access in mounts.items():
            trees[real] = _clone_mount(real, ATTRIBUTES[access])
        trees["/proc"] = _clone_mount("/proc", 0)
        _mount(b"tmpfs", os.fsencode(stage), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=755,size=1m")
        mounted = True
        os.chdir(stage)  # the tmpfs may cover the working folder
        for real, tree in trees.items():
            _make_mount_point(stage, real, tree)
            syscall(
                MOVE_MOUNT, tree, b"", WORKING_FOLDER, os.fsencode(stage + real), FROM_DESCRIPTOR
            )
        for link, target in links.items():
            for name in _missing(stage, [link]):
                name.parent.mkdir(parents=True, exist_ok=True)
                name.symlink_to(target)
        for name in _missing(stage, EMPTY):
            name.mkdir(parents=True)
        _protect(WORKING_FOLDER, stage, 0, ATTR_READ_ONLY)
        syscall(PIVOT_ROOT, b".", b".")
    except OSError:
        if mounted:
            syscall(UMOUNT2, os.fsencode(stage), DETACH)
        return False
    finally:
        for tree in trees.values():
            os.close(tree)
    # Both roots are mounted at the same place; the old one is on top.
    syscall(UMOUNT2, b".", DETACH)
    os.chdir("/")
    return True


def _stage() -> str:
    return next(name for name in STAGES if Path(name).is_dir())


def _clone_mount(path: str, attributes: int) -> int:
    """Return a descriptor of a detached copy of the mount at `path` and of all mounts below it."""
    flags = CLONE | CLOSE_ON_EXEC | RECURSIVE
    tree = syscall(OPEN_TREE, WORKING_FOLDER, os.fsencode(path), flags)
    try:
        if attributes:
            _protect(tree, "", EMPTY_PATH | RECURSIVE, attributes)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _protect(folder: int, name: str, flags: int, attributes: int) -> None:
    change = _MountAttributes(attributes, 0, 0, 0)
    size = ctypes.sizeof(change)
    syscall(MOUNT_SETATTR, folder, os.fsencode(name), flags, change, size)


def _make_mount_point(stage: str, real: str, tree: int) -> None:
    """Create an empty folder or file below `stage` on which the mount of the path `real` is placed.

    It is a folder if the mount `tree` is one.
    """
    for name in _missing(stage, [real]):
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            name.mkdir(parents=True)
        else:
            name.parent.mkdir(parents=True, exist_ok=True)
            name.touch()


def _missing(stage: str, names: Iterable[str]) -> Iterator[Path]:
    return (Path(stage + name) for name in names if not os.path.lexists(stage + name))


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes = b"") -> None:
    syscall(MOUNT, source, target, kind, flags, data)
