"""A file system view of its own for the calling process: what its policy names, and nothing else.

Landlock decides what may be opened. It does not govern metadata: chmod, utime and setxattr on files
outside succeed for a process of the same user, and stat, readlink and connect see every name. In a
mount namespace of its own a process sees the folders of its policy alone, read-only but for the
folders that it may write. Root makes such a namespace directly, another user through a user
namespace. Where neither is possible (a container's filter, an administrator's setting), the caller
denies changes of metadata by seccomp instead (`cuagent.sandbox.seccomp`).

Invariant: where `enter_view` returns False, the process sees what it saw before.
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
HERE = -100
"""AT_FDCWD."""
RECURSIVE, EMPTY_PATH = 0x8000, 0x1000
CLONE, CLOSE_ON_EXEC = 0x1, os.O_CLOEXEC
FROM_DESCRIPTOR = 0x4
"""MOVE_MOUNT_F_EMPTY_PATH."""
MS_NOSUID, MS_NODEV, MS_PRIVATE_BELOW = 0x2, 0x4, 0x44000
DETACH = 0x2
ATTR_READ_ONLY, ATTR_NOSUID, ATTR_NODEV = 0x1, 0x2, 0x4
STAGES = ("/tmp", "/var", "/usr")
"""Folders on which the new root may be put together; they are covered for that moment only."""
EMPTY = ("/tmp", "/var/tmp", "/run", "/home", "/dev/shm")
"""Folders that programs expect to find; what may not be written there is refused as elsewhere."""
STREAMS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
MOST_LINKS = 40


class Access(IntEnum):
    """What a process may do with a place; the larger one counts where a place has two."""

    READ = 0
    DEVICE = 1
    WRITE = 2


ATTRIBUTES = {
    Access.READ: ATTR_READ_ONLY | ATTR_NOSUID | ATTR_NODEV,
    # A device can be written to on a read-only mount as well; its mode and times stay.
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
    """See these places, /proc and nothing else from now on; whether that was possible.

    The process must have one thread. A process that is not root is left with every capability in a
    user namespace of its own, which the caller drops. The working folder stays where it is visible,
    else it is `/`.
    """
    places, links = _plan(
        [(path, Access.READ) for path in read]
        + [(path, Access.DEVICE) for path in devices]
        + [(path, Access.WRITE) for path in write]
    )
    if os.geteuid() != 0 and not _rehearsed():
        return False
    try:
        _unshare()
        _mount(b"none", b"/", None, MS_PRIVATE_BELOW)
    except OSError:
        return False
    folder, mask = Path.cwd(), os.umask(0o022)  # another user id must be able to pass through
    try:
        return _assemble(places, links)
    finally:
        os.umask(mask)
        with suppress(OSError):
            os.chdir(folder)


def _plan(wanted: list[tuple[Path, Access]]) -> tuple[dict[str, Access], dict[str, str]]:
    """Real paths that are mounted, parents first, and the links that lead to them."""
    links = dict(STREAMS)
    accesses: dict[str, Access] = {}
    for path, access in wanted:
        real = _followed(path.absolute(), links)
        if real is not None and not real.startswith("/proc/"):
            accesses[real] = max(access, accesses.get(real, access))
    places: dict[str, Access] = {}
    for real, access in sorted(accesses.items()):
        above = next((places[str(p)] for p in Path(real).parents if str(p) in places), None)
        if above is None or (above is Access.READ and access is Access.WRITE):
            places[real] = access
    return places, links


def _followed(path: Path, links: dict[str, str]) -> str | None:
    """The path without links, which are added to `links`; None where there is nothing."""
    waiting, at, followed = list(reversed(path.parts[1:])), Path("/"), 0
    while waiting:
        part = waiting.pop()
        here = at.parent if part == ".." else at / part
        try:
            target = here.readlink()
        except OSError:
            at = here
            continue
        followed += 1
        if followed > MOST_LINKS:
            return None
        links[str(here)] = str(target)
        at = Path("/") if target.is_absolute() else at
        waiting.extend(part for part in reversed(target.parts) if part != "/")
    return str(at) if at.exists() and at != Path("/") else None


def _rehearsed() -> bool:
    """Whether a child that tries it gets a user namespace in which it may mount.

    Some systems give out namespaces without any rights in them, and there is no way back.
    """
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            _unshare()
            _mount(b"none", b"/", None, MS_PRIVATE_BELOW)
            _mount(b"tmpfs", os.fsencode(_stage()), b"tmpfs", MS_NOSUID | MS_NODEV)
            os._exit(0)
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


def _assemble(places: dict[str, Access], links: dict[str, str]) -> bool:
    """Put the new root together and go there. Where a step fails, all is as before."""
    trees: dict[str, int] = {}
    stage, mounted = _stage(), False
    try:
        for real, access in places.items():
            trees[real] = _cloned(real, ATTRIBUTES[access])
        trees["/proc"] = _cloned("/proc", 0)
        _mount(b"tmpfs", os.fsencode(stage), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=755,size=1m")
        mounted = True
        os.chdir(stage)  # the folder that the tmpfs covers may be the working folder
        for real, tree in trees.items():
            _make_room(stage, real, tree)
            syscall(MOVE_MOUNT, tree, b"", HERE, os.fsencode(stage + real), FROM_DESCRIPTOR)
        for link, target in links.items():
            for name in _missing(stage, [link]):
                name.parent.mkdir(parents=True, exist_ok=True)
                name.symlink_to(target)
        for name in _missing(stage, EMPTY):
            name.mkdir(parents=True)
        _protect(HERE, stage, 0, ATTR_READ_ONLY)
        syscall(PIVOT_ROOT, b".", b".")
    except OSError:
        if mounted:
            syscall(UMOUNT2, os.fsencode(stage), DETACH)
        return False
    finally:
        for tree in trees.values():
            os.close(tree)
    # Of the two roots that lie one upon the other, the old one is above.
    syscall(UMOUNT2, b".", DETACH)
    os.chdir("/")
    return True


def _stage() -> str:
    return next(name for name in STAGES if Path(name).is_dir())


def _cloned(path: str, attributes: int) -> int:
    """A copy of the mount at `path`, with what is mounted below it, that is attached nowhere."""
    flags = CLONE | CLOSE_ON_EXEC | RECURSIVE
    tree = syscall(OPEN_TREE, HERE, os.fsencode(path), flags)
    try:
        if attributes:
            _protect(tree, "", EMPTY_PATH | RECURSIVE, attributes)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _protect(place: int, name: str, flags: int, attributes: int) -> None:
    wanted = _MountAttributes(attributes, 0, 0, 0)
    size = ctypes.sizeof(wanted)
    syscall(MOUNT_SETATTR, place, os.fsencode(name), flags, wanted, size)


def _make_room(stage: str, real: str, tree: int) -> None:
    """Something of the same kind for `tree` to be mounted on."""
    for name in _missing(stage, [real]):
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            name.mkdir(parents=True)
        else:
            name.parent.mkdir(parents=True, exist_ok=True)
            name.touch()


def _missing(stage: str, names: Iterable[str]) -> Iterator[Path]:
    return (Path(stage + name) for name in names if not os.path.lexists(stage + name))


def _mount(source: bytes, place: bytes, kind: bytes | None, flags: int, data: bytes = b"") -> None:
    syscall(MOUNT, source, place, kind, flags, data)
