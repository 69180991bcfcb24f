"""The channel between a trusted process and a worker: one SOCK_SEQPACKET socket pair.

JSON and file descriptors go into the worker. Only records of fixed size come back: nonce, call
number, status and duration, of which none says if a result is right. Nothing that a worker sends is
unpickled, parsed or evaluated.

The nonce and the call number bind a record to the command that it answers, so that a late or
repeated record is detected. They do not authenticate: the candidate shares its process with the
program that answers and can send "done" at any time. It gains nothing by that, because the referee
reads the output from its own memory at that moment.
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
"""Bytes of the longest message that is sent in one packet. A longer message is sent as a memfd,
because the kernel's socket buffer may be small."""
_MOST_DESCRIPTORS = 8


class Status(IntEnum):
    """Outcome of a command. A worker never sends CRASHED or a later one; the referee assigns
    those."""

    DONE = 0
    IMPORT_FAILED = 1
    CONSTRUCT_FAILED = 2
    STATE_MISMATCH = 3
    RAISED = 4
    WRONG_FORM = 5
    WROTE_OUTSIDE = 6
    CHANGED_STATE = 7
    CRASHED = 64
    TIMED_OUT = 65
    FORGED = 66
    LOST = 67
    """The process was killed but did not end: a fault of the machine, not of the candidate."""


class ForgedRecord(Exception):
    """A worker sent bytes that are not a valid record for the current command."""


@dataclass(frozen=True)
class Record:
    """A worker's reply to one call: the only data that it can send to the referee."""

    nonce: int
    call: int
    status: Status
    claimed_ns: int
    """Duration of the forward by the worker's own clock, audited against the wall clock."""


def send_record(channel: socket.socket, record: Record) -> None:
    channel.send(_RECORD.pack(record.nonce, record.call, record.status, record.claimed_ns))


def receive_record(channel: socket.socket) -> Record | None:
    """Return the next record, or None at the end of the channel. Raises ForgedRecord."""
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
    """Send a JSON message and file descriptors to a process that trusts the sender."""
    body = json.dumps(message).encode()
    if len(body) <= _LARGEST_PACKET and not descriptors:
        channel.send(b"J" + body)  # the sandbox blocks sendmsg, which could carry descriptors
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
    """Return the next JSON message and its file descriptors from a trusted process, or None at the
    end of the channel."""
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
