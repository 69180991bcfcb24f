"""Install a seccomp filter: system calls that no honest program needs fail with EPERM.

The filter is assembled as classic BPF (linux/filter.h, linux/seccomp.h). It fails a call instead of
killing the process, so that an honest library can, for example, do without io_uring.
Not covered: ioctl of the GPU driver, which CUDA needs.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from cuagent.sandbox.linux import X86, syscall

SECCOMP = 317 if X86 else 277
SET_MODE_FILTER, EVERY_THREAD = 1, 1
ARCHITECTURE = 0xC000003E if X86 else 0xC00000B7
X32_BIT = 0x40000000

DENIED: dict[str, tuple[int, int | None, str]] = {
    # name: (number on x86-64, number on AArch64, reason)
    "ptrace": (101, 117, "reads and writes another process"),
    "process_vm_readv": (310, 270, "reads another process"),
    "process_vm_writev": (311, 271, "writes another process"),
    "process_madvise": (440, 440, "acts on another process's memory"),
    "pidfd_getfd": (438, 438, "takes a descriptor out of another process"),
    "kcmp": (312, 272, "tells kernel objects of two processes apart"),
    "bpf": (321, 280, "loads programs into the kernel"),
    "sched_setaffinity": (203, 122, "leaves the processors on which all arms are timed"),
    "sched_setscheduler": (144, 119, "can slow the baselines, which may have the same user id"),
    "sched_setparam": (142, 118, "as above"),
    "sched_setattr": (314, 274, "as above"),
    "setpriority": (141, 140, "as above"),
    "ioprio_set": (251, 30, "as above"),
    "perf_event_open": (298, 241, "watches other processes and the clock"),
    "vmsplice": (278, 75, "keeps unmapped memory in a pipe, where no limit counts it"),
    "userfaultfd": (323, 282, "stops the kernel mid-call; a common part of exploits"),
    "io_uring_setup": (425, 425, "makes calls that this filter does not see"),
    "io_uring_enter": (426, 426, "as above"),
    "io_uring_register": (427, 427, "as above"),
    "add_key": (248, 217, "kernel keyrings are shared between processes"),
    "request_key": (249, 218, "as above"),
    "keyctl": (250, 219, "as above"),
    "shmget": (29, 194, "System V objects outlive the process and are found by number"),
    "msgget": (68, 186, "as above"),
    "semget": (64, 190, "as above"),
    "shmat": (30, 196, "the user's other processes have such objects; their numbers are small"),
    "shmctl": (31, 195, "as above"),
    "msgsnd": (69, 189, "as above"),
    "msgrcv": (70, 188, "as above"),
    "msgctl": (71, 187, "as above"),
    "semop": (65, 193, "as above"),
    "semtimedop": (220, 192, "as above"),
    "semctl": (66, 191, "as above"),
    "mq_open": (240, 180, "message queues outlive the process"),
    "mq_unlink": (241, 181, "removes another process's queue by name"),
    "mount": (165, 40, "changes what a path means"),
    "umount2": (166, 39, "as above"),
    "open_tree": (428, 428, "as above"),
    "move_mount": (429, 429, "as above"),
    "fsopen": (430, 430, "as above"),
    "fsconfig": (431, 431, "as above"),
    "fsmount": (432, 432, "as above"),
    "fspick": (433, 433, "as above"),
    "mount_setattr": (442, 442, "as above"),
    "pivot_root": (155, 41, "as above"),
    "chroot": (161, 51, "as above"),
    "unshare": (272, 97, "a new user namespace gives capabilities back"),
    "setns": (308, 268, "enters another namespace"),
    "open_by_handle_at": (304, 265, "opens a file by number, without access to its folder"),
    "name_to_handle_at": (303, 264, "returns such numbers"),
    "kexec_load": (246, 104, "replaces the kernel"),
    "kexec_file_load": (320, 294, "as above"),
    "init_module": (175, 105, "extends the kernel"),
    "finit_module": (313, 273, "as above"),
    "delete_module": (176, 106, "as above"),
    "reboot": (169, 142, "stops the machine"),
    "swapon": (167, 224, "administration"),
    "swapoff": (168, 225, "administration"),
    "acct": (163, 89, "administration"),
    "quotactl": (179, 60, "administration"),
    "syslog": (103, 116, "reads the kernel's log"),
    "fanotify_init": (300, 262, "watches other processes' files"),
    "inotify_init": (253, None, "watches folders that are not readable"),
    "inotify_init1": (294, 26, "as above"),
    "settimeofday": (164, 170, "moves the clock"),
    "clock_settime": (227, 112, "moves the clock"),
    "clock_adjtime": (305, 266, "moves the clock"),
    "adjtimex": (159, 171, "moves the clock"),
    "sethostname": (170, 161, "administration"),
    "setdomainname": (171, 162, "administration"),
    "iopl": (172, None, "talks to devices directly"),
    "ioperm": (173, None, "as above"),
    "seccomp": (317, 277, "could trap and forge the calls of trusted code in this process"),
}
SUCCESS = 0
METADATA: dict[str, tuple[int | None, int | None, int]] = {
    # name: (number on x86-64, number on AArch64, result of the call, which does nothing)
    # Compilers and copy programs set modes and times of their files, and stop at an error.
    "chmod": (90, None, SUCCESS),
    "fchmod": (91, 52, SUCCESS),
    "fchmodat": (268, 53, SUCCESS),
    "fchmodat2": (452, 452, SUCCESS),
    "utime": (132, None, SUCCESS),
    "utimes": (235, None, SUCCESS),
    "futimesat": (261, None, SUCCESS),
    "utimensat": (280, 88, SUCCESS),
    "chown": (92, None, errno.EPERM),
    "lchown": (94, None, errno.EPERM),
    "fchown": (93, 55, errno.EPERM),
    "fchownat": (260, 54, errno.EPERM),
    # The result on a file system without extended attributes.
    "setxattr": (188, 5, errno.EOPNOTSUPP),
    "lsetxattr": (189, 6, errno.EOPNOTSUPP),
    "fsetxattr": (190, 7, errno.EOPNOTSUPP),
    "setxattrat": (463, 463, errno.EOPNOTSUPP),
    "removexattr": (197, 14, errno.EOPNOTSUPP),
    "lremovexattr": (198, 15, errno.EOPNOTSUPP),
    "fremovexattr": (199, 16, errno.EOPNOTSUPP),
    "removexattrat": (466, 466, errno.EOPNOTSUPP),
    "getxattr": (191, 8, errno.EOPNOTSUPP),
    "lgetxattr": (192, 9, errno.EOPNOTSUPP),
    "getxattrat": (464, 464, errno.EOPNOTSUPP),
    "listxattr": (194, 11, errno.EOPNOTSUPP),
    "llistxattr": (195, 12, errno.EOPNOTSUPP),
    "listxattrat": (465, 465, errno.EOPNOTSUPP),
    "file_setattr": (469, 469, errno.EOPNOTSUPP),
}
"""Calls that change metadata of files or read extended attributes. They are blocked if the process
has no file system view of its own: Landlock does not restrict them, and a filter cannot see which
file is meant."""
CLONE3 = 435
CLONE, IOCTL, PRLIMIT, PRCTL = (56, 16, 302, 157) if X86 else (220, 29, 261, 167)
SOCKET, CONNECT, SOCKETPAIR, FCNTL = (41, 42, 53, 72) if X86 else (198, 203, 199, 25)
SENDMSG, SENDMMSG = (46, 307) if X86 else (211, 269)
AF_UNIX, SOCKET_KIND, SOCK_STREAM, SOCK_SEQPACKET = 1, 0xF, 1, 5
WATCHES = (1024, 1026)
"""Commands of fcntl to refuse, because they act on other processes: F_SETLEASE delays their opening
of a file, F_NOTIFY reports their actions."""
FILE_FLAGS = (0x40086602, 0x40046602, 0x401C5820, 0x40087602)
"""Commands of ioctl that change metadata: FS_IOC_SETFLAGS in both widths, FS_IOC_FSSETXATTR,
FS_IOC_SETVERSION."""
NEW_NAMESPACES = 0x7E020000
TERMINAL_INJECTION = (0x5412, 0x541C)
"""Commands of ioctl that type into the terminal of the parent process: TIOCSTI and TIOCLINUX."""
PR_SET_SECCOMP = 22

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN, MASK = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
ALLOW, KILL_PROCESS, FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def program(*, network: bool, gpu: bool = False, metadata: bool = False) -> bytes:
    """Assemble the seccomp filter; return it as an array of `struct sock_filter`.

    `network` allows all sockets, `gpu` the sockets that CUDA needs to start, `metadata` changes of
    modes, times and owners of files, and their extended attributes.
    """
    code = [
        _op(LOAD, 4),
        _op(EQUAL, ARCHITECTURE, 1, 0),
        _op(RETURN, KILL_PROCESS),
        _op(LOAD, 0),
        *(_when(AT_LEAST, X32_BIT, errno.EPERM) if X86 else []),
        # A filter cannot read the flags of clone3, which are in memory; libc falls back to clone.
        *_when(EQUAL, CLONE3, errno.ENOSYS),
        *_argument(CLONE, 0, ANY_BIT, NEW_NAMESPACES),
        *_argument(PRCTL, 0, EQUAL, PR_SET_SECCOMP),
        *(op for request in TERMINAL_INJECTION for op in _argument(IOCTL, 1, EQUAL, request)),
        *(op for request in FILE_FLAGS for op in _argument(IOCTL, 1, EQUAL, request)),
        *(op for command in WATCHES for op in _argument(FCNTL, 1, EQUAL, command)),
        # Limits of another process, for example the referee with the same uid; 0 is the caller.
        _op(EQUAL, PRLIMIT, 0, 4),
        _op(LOAD, 16),
        _op(EQUAL, 0, 1, 0),
        _op(RETURN, FAIL | errno.EPERM),
        _op(LOAD, 0),
    ]
    if not network:
        code += _sockets(gpu=gpu)
    if not metadata:
        for on_x86, on_arm, answer in METADATA.values():
            call = on_x86 if X86 else on_arm
            if call is not None:
                code += _when(EQUAL, call, answer)
    for x86, arm, _why in DENIED.values():
        number = x86 if X86 else arm
        if number is not None:
            code += _when(EQUAL, number, errno.EPERM)
    return b"".join([*code, _op(RETURN, ALLOW)])


def _sockets(*, gpu: bool) -> list[bytes]:
    """Return instructions that block sockets to other processes, and allow pairs except of
    datagrams.

    Landlock does not protect socket files, such as a container daemon's. A datagram needs no
    connection, so one to a socket file would carry data and descriptors out. SOCK_RAW is a datagram
    socket too in AF_UNIX, so the filter lists the kinds that need a connection.
    """
    datagrams = [
        _op(EQUAL, SOCKETPAIR, 0, 6),
        _op(LOAD, 24),
        _op(MASK, SOCKET_KIND),
        _op(EQUAL, SOCK_STREAM, 2, 0),
        _op(EQUAL, SOCK_SEQPACKET, 1, 0),
        _op(RETURN, FAIL | errno.EACCES),
        _op(LOAD, 0),
    ]
    # CUDA expects ENOENT if no MPS daemon runs.
    connect = _when(EQUAL, CONNECT, errno.ENOENT)
    if not gpu:
        # A descriptor that was sent but not received belongs to no process and to no limit.
        sending = [*_when(EQUAL, SENDMSG, errno.EPERM), *_when(EQUAL, SENDMMSG, errno.EPERM)]
        return [*_when(EQUAL, SOCKET, errno.EACCES), *connect, *datagrams, *sending]
    # CUDA binds an AF_UNIX socket at its start; else cuInit fails with error 304.
    return [
        _op(EQUAL, SOCKET, 0, 9),
        _op(LOAD, 16),
        _op(EQUAL, AF_UNIX, 1, 0),
        _op(RETURN, FAIL | errno.EACCES),
        _op(LOAD, 24),
        _op(MASK, SOCKET_KIND),
        _op(EQUAL, SOCK_STREAM, 2, 0),
        _op(EQUAL, SOCK_SEQPACKET, 1, 0),
        _op(RETURN, FAIL | errno.EACCES),
        _op(LOAD, 0),
        *connect,
        *datagrams,
    ]


def install(*, network: bool, gpu: bool = False, metadata: bool = False) -> None:
    """Apply the filter of `program` to every thread of this process. Raises OSError.

    Requires no_new_privs.
    """
    instructions = program(network=network, gpu=gpu, metadata=metadata)
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    syscall(SECCOMP, SET_MODE_FILTER, EVERY_THREAD, _Program(len(instructions) // 8, buffer))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    def __init__(self, length: int, buffer: ctypes.Array[ctypes.c_char]) -> None:
        super().__init__(length, ctypes.addressof(buffer))
        self._buffer = buffer  # keeps the memory alive


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _when(test: int, value: int, error: int) -> list[bytes]:
    """Return instructions that let a call fail with `error` if its number passes `test` against
    `value`."""
    return [_op(test, value, 0, 1), _op(RETURN, FAIL | error)]


def _argument(number: int, index: int, test: int, value: int) -> list[bytes]:
    """Return instructions that let call `number` fail with EPERM if one of its arguments passes
    `test`.

    The low 32 bits of argument `index` are compared with `value`.
    """
    return [
        _op(EQUAL, number, 0, 4),
        _op(LOAD, 16 + 8 * index),
        _op(test, value, 0, 1),
        _op(RETURN, FAIL | errno.EPERM),
        _op(LOAD, 0),
    ]
