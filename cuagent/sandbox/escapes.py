"""Try to escape from the sandbox in each known way.

`cuagent.sandbox.probe` runs this script in a sandboxed child, with the targets as JSON in the first
argument. It prints a JSON object that maps the name of each escape to its result, or to null if the
sandbox prevented it. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Targets = dict[str, Any]
"""Objects that the escapes try to reach, by name. secret, verifier, neighbour, readable, closed:
files; attribute: of secret; shared: name in /dev/shm; segment: number of a System V segment; queue:
name; tcp, udp: ports; abstract: socket name; socket, datagrams: socket files; parent: pid; uid; fd;
most: processes; largest: bytes; scratch: the writable folder."""


def read_secret(t: Targets) -> str:
    return Path(t["secret"]).read_text()


def read_neighbour(t: Targets) -> str:
    """Read the source of another attempt, in a folder next to this process's folder."""
    return Path(t["neighbour"]).read_text()


def write_verifier(t: Targets) -> str:
    with Path(t["verifier"]).open("a") as file:
        file.write("# was here\n")
    return "appended"


def replace_verifier(t: Targets) -> str:
    own = Path(t["scratch"], "own")
    own.write_text("mine")
    own.rename(t["verifier"])
    return "replaced"


def _require_change(path: str, change: Callable[[], None]) -> str:
    """Call `change`; raise PermissionError if the metadata of `path` stayed the same.

    A blocked system call may report success without an effect.
    """

    def metadata() -> tuple[int, int, int]:
        found = Path(path).stat()
        return found.st_mode, found.st_mtime_ns, found.st_ctime_ns

    before = metadata()
    time.sleep(0.02)  # so that a change shows in ctime
    change()
    if metadata() == before:
        raise PermissionError("nothing was changed")
    return "changed"


def change_mode(t: Targets) -> str:
    """Change the mode of a file that belongs to the same user but is not readable in the
    sandbox."""
    return _require_change(t["verifier"], lambda: Path(t["verifier"]).chmod(0o640))


def change_times(t: Targets) -> str:
    return _require_change(t["verifier"], lambda: os.utime(t["verifier"], (1, 1)))


def change_owner(t: Targets) -> str:
    return _require_change(t["verifier"], lambda: os.chown(t["verifier"], os.getuid(), os.getgid()))


def set_attribute(t: Targets) -> str:
    os.setxattr(t["verifier"], "user.cuagent", b"was here")
    return "set"


def read_attribute(t: Targets) -> str:
    """Read an extended attribute of an unreadable file, such as the address of its download."""
    return os.getxattr(t["secret"], t["attribute"]).decode()


def join_segment(t: Targets) -> str:
    """Map a System V shared memory segment of the same user by its number, which is easy to
    guess."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(t["segment"], None, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "shmat")
    return ctypes.string_at(address).decode()


def remove_queue(t: Targets) -> str:
    """Remove a POSIX message queue of the same user by its name."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(241 if os.uname().machine == "x86_64" else 181, t["queue"].encode()):
        raise OSError(ctypes.get_errno(), "mq_unlink")
    return "removed"


def change_library_mode(t: Targets) -> str:
    """Change the mode of a readable file of the system through its open descriptor."""
    with Path(t["readable"]).open() as file:
        return _require_change(t["readable"], lambda: os.fchmod(file.fileno(), 0o600))


def stat_closed(t: Targets) -> str:
    """Read the size of a file in a folder of mode 0700."""
    return str(Path(t["closed"]).stat().st_size)


def watch_tmp(t: Targets) -> str:
    """Watch with inotify what other processes do in a folder that is not readable."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(0)
    everything = 0xFFF
    if watch >= 0 and libc.inotify_add_watch(watch, os.fsencode("/tmp"), everything) >= 0:
        return "watched"
    raise OSError(ctypes.get_errno(), "inotify")


def follow_link(t: Targets) -> str:
    """Read a file outside the sandbox through a symbolic link, such as a candidate's header could
    be."""
    link = Path(t["scratch"], "link.h")
    link.symlink_to(t["secret"])
    try:
        return link.read_text()
    finally:
        link.unlink()


def hard_link(t: Targets) -> str:
    """Make a hard link to a file outside, which a trusted reader would take for a file of the
    folder."""
    link = Path(t["scratch"], "hard.h")
    link.hardlink_to(t["secret"])
    link.unlink()
    return "linked"


def list_tmp(_t: Targets) -> str:
    """List /tmp, in which other processes leave files."""
    if Path(_t["secret"]).parent.name in (found := os.listdir("/tmp")):  # noqa: PTH208
        return str(found[:3])
    raise PermissionError("no file of other processes is visible")


def list_shared_memory(t: Targets) -> str:
    if (found := os.listdir("/dev/shm")) and t["shared"] in found:  # noqa: PTH208
        return str(found[:3])
    raise PermissionError("no file of other processes is visible")


def list_home(_t: Targets) -> str:
    import pwd

    homes = {entry.pw_dir for entry in pwd.getpwall() if entry.pw_uid in (0, _t["uid"])}
    return str([os.listdir(home)[:3] for home in homes])  # noqa: PTH208


def open_tcp(t: Targets) -> str:
    socket.create_connection(("127.0.0.1", t["tcp"]), timeout=1).close()
    return "connected"


def send_udp(t: Targets) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect(("127.0.0.1", t["udp"]))
        udp.send(b"hello")
        # In an empty network namespace this is refused, which the next call reports.
        time.sleep(0.05)
        udp.send(b"hello")
        return "sent"


def abstract_socket(t: Targets) -> str:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.connect("\0" + t["abstract"])
    return "connected"


def socket_file(t: Targets) -> str:
    """Connect to a socket file, such as a container daemon's."""
    with socket.socket(socket.AF_UNIX) as unix:
        unix.connect(t["socket"])
    return "connected"


def datagram_to_file(t: Targets) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix:
        unix.sendto(b"data", t["datagrams"])
    return "delivered"


def datagram_of_a_pair(t: Targets) -> str:
    """Send a descriptor out of the sandbox through a datagram socket pair.

    A socket of such a pair can send to any address, not only to its peer.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs, Path(__file__).open() as file:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, file.fileno().to_bytes(4, sys.byteorder))]
        ours.sendmsg([b"data"], rights, 0, t["datagrams"])
    return "delivered"


def datagram_of_a_raw_pair(t: Targets) -> str:
    """Send a datagram out of the sandbox through a socket pair of type SOCK_RAW.

    For AF_UNIX the kernel makes a datagram socket of it, and no right is needed.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)
    with ours, theirs:
        ours.sendto(b"data", t["datagrams"])
    return "delivered"


def descriptor_in_flight(_t: Targets) -> str:
    """Hide memory in a descriptor that was sent over a socket and then closed: no process lists
    it."""
    ours, theirs = socket.socketpair()
    held = os.memfd_create("held")
    try:
        with ours, theirs:
            socket.send_fds(ours, [b"."], [held])
    finally:
        os.close(held)
    return "sent"


def memory_in_a_pipe(_t: Targets) -> str:
    """Keep a page of memory in a pipe after the process has unmapped it, so that no limit counts
    it.

    If the page is part of a huge page, the whole huge page stays.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    page = ctypes.create_string_buffer(4096)
    part = (ctypes.c_size_t * 2)(ctypes.addressof(page), len(page))
    ends = os.pipe()
    try:
        if libc.vmsplice(ends[1], ctypes.byref(part), 1, 0) > 0:
            return "kept"
        raise OSError(ctypes.get_errno(), "vmsplice")
    finally:
        os.close(ends[0])
        os.close(ends[1])


def inherited_descriptor(t: Targets) -> str:
    content = os.pread(t["fd"], 100, 0).decode()
    if content != Path(t["secret"]).name:  # the text of that file
        raise PermissionError("another file has this number")
    return content


def inherited_environment(_t: Targets) -> str:
    own = Path("/proc/self/environ").read_text() + json.dumps(dict(os.environ))
    if "CUAGENT_PROBE_SECRET" in own:
        return "a variable of the parent"
    raise PermissionError("no variable of the parent")


def trace_parent(t: Targets) -> str:
    seize = 0x4206
    if ctypes.CDLL(None, use_errno=True).ptrace(seize, t["parent"], 0, 0) == 0:
        return "traced"
    raise OSError(ctypes.get_errno(), "ptrace")


def parent_environment(t: Targets) -> str:
    return Path(f"/proc/{t['parent']}/environ").read_text()[:20]


def parent_command(t: Targets) -> str:
    return Path(f"/proc/{t['parent']}/cmdline").read_text()[:20]


def parent_memory(t: Targets) -> str:
    with Path(f"/proc/{t['parent']}/mem").open("r+b"):
        return "opened"


def signal_parent(t: Targets) -> str:
    os.kill(t["parent"], 0)
    os.kill(t["parent"], signal.SIGURG)
    return "signalled"


def limit_parent(t: Targets) -> str:
    import resource

    resource.prlimit(t["parent"], resource.RLIMIT_CORE, (0, 0))
    return "its limits changed"


def slow_parent(t: Targets) -> str:
    os.sched_setscheduler(t["parent"], os.SCHED_IDLE, os.sched_param(0))
    return "the parent runs only on idle processors"


def become_root(_t: Targets) -> str:
    os.setuid(0)
    if Path("/etc/shadow").exists() and os.access("/etc/shadow", os.W_OK):
        return "root"
    raise PermissionError("uid 0 without the rights of root")


def new_namespace(_t: Targets) -> str:
    new_user = 0x10000000
    if ctypes.CDLL(None, use_errno=True).unshare(new_user) == 0:
        return "unshared"
    raise OSError(ctypes.get_errno(), "unshare")


def mount_over(t: Targets) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", t["scratch"].encode(), b"tmpfs", 0, None) == 0:
        libc.umount2(t["scratch"].encode(), 0)
        return "mounted"
    raise OSError(ctypes.get_errno(), "mount")


def big_file(t: Targets) -> str:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = Path(t["scratch"], "big")
    try:
        with path.open("wb") as file:
            file.truncate(t["largest"] + 1)
        return "written"
    finally:
        path.unlink(missing_ok=True)


def fork_bomb(t: Targets) -> str:
    """Fork more than `most` processes. This escape is tried last, because its children must be
    reaped."""
    started: list[int] = []
    try:
        while len(started) <= t["most"]:
            pid = os.fork()
            if pid == 0:
                time.sleep(20)
                os._exit(0)
            started.append(pid)
        return f"{len(started)} processes"
    finally:
        for pid in started:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


ESCAPES: tuple[Callable[[Targets], str], ...] = (
    read_secret,
    read_neighbour,
    write_verifier,
    replace_verifier,
    change_mode,
    change_times,
    change_owner,
    set_attribute,
    read_attribute,
    join_segment,
    remove_queue,
    change_library_mode,
    stat_closed,
    watch_tmp,
    follow_link,
    hard_link,
    list_tmp,
    list_shared_memory,
    list_home,
    open_tcp,
    send_udp,
    abstract_socket,
    socket_file,
    datagram_to_file,
    datagram_of_a_pair,
    datagram_of_a_raw_pair,
    descriptor_in_flight,
    memory_in_a_pipe,
    inherited_descriptor,
    inherited_environment,
    trace_parent,
    parent_environment,
    parent_command,
    parent_memory,
    signal_parent,
    limit_parent,
    slow_parent,
    become_root,
    mount_over,
    new_namespace,
    big_file,
    fork_bomb,
)


def attempt_all(targets: Targets) -> dict[str, str | None]:
    """Try all escapes. Return the result of each by name; None if the sandbox prevented it."""
    results: dict[str, str | None] = {}
    for escape in ESCAPES:
        try:
            results[escape.__name__] = escape(targets)
        except (OSError, KeyError):
            results[escape.__name__] = None
    return results


if __name__ == "__main__":
    print(json.dumps(attempt_all(json.loads(sys.argv[1]))))
