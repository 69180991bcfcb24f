"""The channel between a trusted process and a worker: one SOCK_SEQPACKET socket pair.

Into the worker goes JSON, with descriptors beside it. Out of the worker come only records of fixed
size: four integers, none of which says anything about right or wrong. Nothing that a worker sends
is unpickled, parsed or evaluated.

The nonce and the call number bind a record to the command it answers, so that a late or repeated
record is noticed. They do not authenticate: the candidate shares its process with the program that
answers, and can send "done" whenever it likes. It gains nothing by that, because the output is
read from the referee's memory at that moment.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

_RECORD = struct.Struct("<QIBxxxQ")
_LARGEST_PACKET = 32 << 10
"""Bytes; a longer message travels in a memfd, whatever the kernel's socket buffer holds."""
_MOST_DESCRIPTORS = 8


class Status(IntEnum):
    """How a command ended. The last four are never sent; the referee concludes them."""

    DONE = 0
    IMPORT_FAILED = 1
    CONSTRUCT_FAILED = 2
    STATE_MISMATCH = 3
    RAISED = 4
    WRONG_FORM = 5
    WROTE_OUTSIDE = 6
    CRASHED = 64
    TIMED_OUT = 65
    FORGED = 66
    LOST = 67
    """Killed, and yet not gone: the machine's fault, not the candidate's."""


class ForgedRecord(Exception):
    """What came out of the worker is not a record that answers the command."""


@dataclass(frozen=True)
class Record:
    """All that a worker can say."""

    nonce: int
    call: int
    status: Status
    claimed_ns: int
    """Duration of the forward by the worker's own clock. A claim, audited by the wall clock."""


def send_record(channel: socket.socket, record: Record) -> None:
    channel.send(_RECORD.pack(record.nonce, record.call, record.status, record.claimed_ns))


def receive_record(channel: socket.socket) -> Record | None:
    """The next record; None at the end of the channel. Raises ForgedRecord."""
    try:
        packet = channel.recv(_RECORD.size + 1)
    except ConnectionResetError:
        return None
    if not packet:
        return None
    if len(packet) != _RECORD.size:
        raise ForgedRecord(f"{len(packet)} bytes where a record has {_RECORD.size}")
    nonce, call, status, claimed = _RECORD.unpack(packet)
    if status >= Status.CRASHED or status not in Status.__members__.values():
        raise ForgedRecord(f"status {status}")
    return Record(nonce, call, Status(status), claimed)


def send_message(
    channel: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()
) -> None:
    """Send JSON and descriptors to a process that may trust us."""
    body = json.dumps(message).encode()
    if len(body) <= _LARGEST_PACKET and not descriptors:
        channel.send(b"J" + body)  # the sandbox refuses sendmsg, which could carry descriptors
        return
    if len(body) <= _LARGEST_PACKET:
        socket.send_fds(channel, [b"J" + body], list(descriptors))
        return
    overflow = os.memfd_create("cuagent-message", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(overflow), "wb") as file:
            file.write(body)
        socket.send_fds(channel, [b"F"], [*descriptors, overflow])
    finally:
        os.close(overflow)


def receive_message(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive what `send_message` sent, from a trusted peer; None at the end of the channel."""
    size = array.array("i").itemsize * _MOST_DESCRIPTORS
    try:
        packet, ancillary, _, _ = channel.recvmsg(
            _LARGEST_PACKET + 1, socket.CMSG_SPACE(size), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None
    if not packet:
        return None
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    held = list(descriptors)
    if packet[:1] == b"J":
        return json.loads(packet[1:]), held
    overflow = held.pop()
    with os.fdopen(overflow, "rb") as file:
        file.seek(0)
        return json.loads(file.read()), held


def socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
