"""Find the strongest tier that works on this machine, by trying to escape from each.

The result is cached for the process.

Invariant: a tier is returned only if a real child in it failed at every escape in
`cuagent.sandbox.escapes`, except `WITHOUT_VIEW`, and could still do the work of an honest candidate
(start, write to its folder, report).
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cuagent.sandbox import landlock
from cuagent.sandbox.enter import own_uid_possible
from cuagent.sandbox.policy import Policy, SandboxError, Tier
from cuagent.sandbox.wrap import bubblewrap, wrap

ESCAPES = Path(__file__).with_name("escapes.py")
PROCESSES, LARGEST = 32, 1 << 20
"""Limits of the probing child: number of processes, and bytes of a file."""
WITHOUT_VIEW = frozenset({"stat_closed"})
"""Escapes that are tolerated, because they succeed if a process cannot get its own file system
view. They reveal names outside the sandbox, but no content. `stamp` states it in the verdict."""
ATTRIBUTE = "user.cuagent"
"""Name of the extended attribute that an escape tries to read."""
DEADLINE = 120.0
"""Time limit of a probe in seconds; it usually takes less than one."""

_PROBING = threading.Lock()


@dataclass(frozen=True)
class Escape:
    """Result of trying one escape from the sandbox; `got` is None if the sandbox prevented it."""

    name: str
    got: str | None


def probe() -> Tier:
    """Return the strongest tier for commands on this machine. The first call takes less than a
    second."""
    return next(filter(is_effective, (Tier.BUBBLEWRAP, Tier.LANDLOCK)), Tier.NONE)


def probe_forked() -> Tier:
    """Return the strongest tier for forked children, which bubblewrap cannot confine."""
    return Tier.LANDLOCK if is_effective(Tier.LANDLOCK) else Tier.NONE


def is_effective(tier: Tier) -> bool:
    """Return True if the tier exists here and no escape from it succeeds, except `WITHOUT_VIEW`."""
    with _PROBING:  # other threads wait for the answer instead of probing too
        found = successful_escapes(tier)
    return found is not None and found <= WITHOUT_VIEW


@cache
def successful_escapes(tier: Tier) -> frozenset[str] | None:
    """Return the names of the escapes that succeed in `tier`; None if the tier cannot be started or
    this process cannot manage it: a root without CAP_DAC_OVERRIDE cannot remove the files of a
    child with a separate user id.

    Not thread-safe: hold the lock `_PROBING`.
    """
    available = bubblewrap() is not None if tier is Tier.BUBBLEWRAP else bool(landlock.abi())
    try:
        found = selftest(tier) if available else None
    except (SandboxError, PermissionError):
        return None
    return None if found is None else frozenset(e.name for e in found if e.got is not None)


def stamp(tier: Tier, policy: Policy) -> str:
    """Describe the tier in one line for a verdict, with the mechanisms in use under `policy`."""
    if tier is Tier.NONE:
        return "UNISOLATED"
    own = tier is Tier.LANDLOCK and own_uid_possible(policy)
    uid = "own uid" if own else "same uid"
    with _PROBING:
        found = successful_escapes(tier)
    viewed = found is not None and not found & WITHOUT_VIEW
    outside = "files outside hidden" if viewed else "names outside visible"
    limited = policy.memory_bytes and not policy.gpu
    memory = f"memory by {'rlimit and ' if limited else ''}watch, files by watch"
    return f"{tier.value} ({uid}, {outside}, landlock abi {landlock.abi()}, seccomp, {memory})"


def selftest(tier: Tier) -> list[Escape]:
    """Try every escape in a real child of this process under `tier`; return the results.

    Raises SandboxError.
    """
    import subprocess  # not at the top, because every sandboxed command imports this package

    with _targets() as (targets, scratch, inherited):
        readable = Path(str(targets["readable"]))
        policy = Policy(
            read=(ESCAPES, readable), write=(scratch,), processes=PROCESSES, file_bytes=LARGEST
        )
        command = [sys.executable, "-I", "-S", str(ESCAPES), json.dumps(targets)]
        try:
            child = subprocess.run(
                wrap(command, policy, tier),
                cwd=scratch,
                env={**os.environ, "CUAGENT_PROBE_SECRET": "1"},
                pass_fds=(inherited,),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DEADLINE,
                check=True,
            )
            results = json.loads(child.stdout)
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
            raise SandboxError(f"sandbox: tier {tier} does not start here: {last}") from error
        except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
            raise SandboxError(f"sandbox: tier {tier} gave no report: {error}") from error
    return [Escape(name, got) for name, got in results.items()]


@contextmanager
def _targets() -> Iterator[tuple[dict[str, object], Path, int]]:
    """Create the targets of the escapes (files, sockets, a descriptor), and remove them afterwards.

    Yields the targets by name, and the child's writable folder and inherited descriptor.
    """
    import socket
    import tempfile

    with ExitStack() as stack:
        outside = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cuagent-probe-")))
        shared = stack.enter_context(tempfile.NamedTemporaryFile(dir="/dev/shm"))
        files = {name: outside / name for name in ("secret", "verifier", "neighbour")}
        outside.chmod(0o755)  # as the folders of a session: Landlock alone must deny the rest
        (outside / "closed").mkdir(0o700)
        files |= {"readable": outside / "readable", "closed": outside / "closed" / "file"}
        for name, file in files.items():
            file.write_text(name)
        secret = stack.enter_context(files["secret"].open())
        scratch = outside / "scratch"
        scratch.mkdir()
        sockets = {
            "tcp": socket.socket(socket.AF_INET),
            "udp": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            "abstract": socket.socket(socket.AF_UNIX),
            "file": socket.socket(socket.AF_UNIX),
            "datagrams": socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        }
        for one in sockets.values():
            stack.enter_context(one)
        sockets["tcp"].bind(("127.0.0.1", 0))
        sockets["udp"].bind(("127.0.0.1", 0))
        sockets["abstract"].bind(f"\0{outside.name}")
        sockets["file"].bind(str(outside / "socket"))
        sockets["datagrams"].bind(str(outside / "datagrams"))
        for name in ("tcp", "abstract", "file"):
            sockets[name].listen()
        targets: dict[str, object] = {
            **{name: str(file) for name, file in files.items()},
            "scratch": str(scratch),
            "shared": Path(shared.name).name,
            "tcp": sockets["tcp"].getsockname()[1],
            "udp": sockets["udp"].getsockname()[1],
            "abstract": outside.name,
            "socket": str(outside / "socket"),
            "datagrams": str(outside / "datagrams"),
            **_objects(stack, files["secret"], outside.name),
            "fd": secret.fileno(),
            "parent": os.getpid(),
            "uid": os.getuid(),
            "most": 4 * PROCESSES,  # processes of the same user may end meanwhile
            "largest": LARGEST,
        }
        yield targets, scratch, secret.fileno()


def _objects(stack: ExitStack, secret: Path, name: str) -> dict[str, object]:
    """Create an extended attribute, a System V segment and a message queue, where the machine has
    them.

    Returns their names for `Targets`; `stack` removes them.
    """
    import ctypes

    found: dict[str, object] = {}
    with suppress(OSError):
        os.setxattr(secret, ATTRIBUTE, b"attribute")
        found["attribute"] = ATTRIBUTE
    libc = ctypes.CDLL(None)
    private, create, remove, owner_only = 0, 0o1000, 0, 0o600  # as in <sys/ipc.h>
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(private, 4096, create | owner_only)
    if segment >= 0:
        stack.callback(libc.shmctl, segment, remove, None)
        address = ctypes.c_void_p(libc.shmat(segment, None, 0))
        ctypes.memmove(address, b"segment", 8)
        libc.shmdt(address)
        found["segment"] = segment
    with suppress(OSError, AttributeError):
        queues = ctypes.CDLL("librt.so.1")
        queue = queues.mq_open(f"/{name}".encode(), os.O_CREAT, owner_only, None)
        if queue >= 0:
            os.close(queue)
            stack.callback(queues.mq_unlink, f"/{name}".encode())
            found["queue"] = name
    return found
