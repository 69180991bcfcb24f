"""Tests of sessions in forked processes: results, messages, and the end of their processes."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from cuagent.arms import CANDIDATE
from cuagent.attempt import Attempt
from cuagent.task import Device, Precision, flatten
from cuagent.worker import Arena, ForkServer, ModelSpec, Session, SessionEnded, Status, layout_of
from cuagent.worker.channel import (
    ForgedRecord,
    Record,
    receive_message,
    receive_record,
    send_message,
    send_record,
    socket_pair,
)

MODEL = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))
    def forward(self, pair, scale):
        a, b = pair["a"], pair["b"]
        return {{"sum": (a + b.T) * scale, "more": [a.sum(), {more}]}}
"""


class Stage:
    """Arenas and a model spec for a model with nested inputs and outputs."""

    def __init__(self, count: int = 3) -> None:
        self.sets = [[torch.randn(4, 6), torch.randn(6, 12)[:, ::3]] for _ in range(count)]
        a, b = self.sets[0]
        _, inputs = flatten([{"a": a, "b": b}, 2.5])
        output = {"sum": a, "more": [a.sum(), torch.zeros(8)]}
        leaves, spec = flatten(output)
        self.order = ModelSpec(
            arm=CANDIDATE,
            device=Device.CPU,
            precision=Precision.MATCH,
            inputs=inputs,
            output=spec,
            state=("weight",),
            init=flatten([[], {}])[1],
            seed=0,
        )
        self.inputs = Arena.create(layout_of([a, b]), count, "cpu")
        self.outputs = Arena.create(layout_of(leaves, dense=True), count, "cpu")
        self.weights = Arena.create(layout_of([torch.zeros(8)]), 1, "cpu")
        self.weights.write([torch.arange(8.0)])
        for slot, tensors in enumerate(self.sets):
            self.inputs.write(tensors, slot)

    def open(self, fork_server: ForkServer, more: str = "self.weight * 1") -> Session:
        attempt = Attempt((("model_new.py", MODEL.format(more=more)),))
        session = Session.open(fork_server, self.order, attempt)
        session.load(self.weights)
        return session


def test_block_runs_every_slot_under_one_clock(fork_server: ForkServer) -> None:
    stage = Stage()
    with stage.open(fork_server) as session:
        pairs = [(0, 2), (1, 1), (2, 0)]
        block = session.block(stage.inputs, stage.outputs, pairs, deadline_s=60)
    assert len(block.claimed_s) == 3
    assert 0 < sum(block.claimed_s) <= block.wall_s
    for source, target in pairs:
        a, b = stage.sets[source]
        found = _by_form(*stage.outputs.tensors(target))
        torch.testing.assert_close(
            {"sum": (a + b.T) * 2.5, "n": a.sum(), "w": torch.arange(8.0)},
            dict(zip(("sum", "n", "w"), found, strict=True)),
        )


def _by_form(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the 4x6 tensor, the scalar and the vector of 8, in whichever order the flattened dict
    has."""
    return sorted(tensors, key=lambda x: (-x.dim(), x.numel()))[:1] + sorted(
        (x for x in tensors if x.dim() < 2), key=torch.Tensor.numel
    )


def test_calls_in_a_row_are_timed_together(fork_server: ForkServer) -> None:
    stage = Stage()
    slow = "(__import__('time').sleep(0.002), self.weight)[1]"
    with stage.open(fork_server, slow) as session:
        seconds = session.row(stage.inputs, 1, 20, deadline_s=60)
    assert 0.002 <= seconds < 0.02
    with stage.open(fork_server, "1 / 0") as session, pytest.raises(SessionEnded) as ended:
        session.row(stage.inputs, 1, 20, deadline_s=60)
    assert ended.value.status is Status.RAISED


def test_inputs_keep_their_strides(fork_server: ForkServer) -> None:
    stage = Stage(1)
    more = "torch.full((8,), float(b.stride()[1]))"
    with stage.open(fork_server, more) as session:
        session.block(stage.inputs, stage.outputs, [(0, 0)], deadline_s=60)
    assert any(bool((x == 3).all()) for x in stage.outputs.tensors() if x.shape == (8,))


def test_own_input_copies_keep_strides_and_leave_lent_inputs_unchanged(
    fork_server: ForkServer,
) -> None:
    stage = Stage(2)
    more = "torch.full((8,), float(b.stride()[1])) + 0 * a.add_(1).sum()"
    with stage.open(fork_server, more) as session:
        pairs = [(0, 0), (1, 1)]
        session.run(stage.inputs, stage.outputs, pairs, deadline_s=60, own=True)
    for slot, (a, b) in enumerate(stage.sets):
        found = stage.outputs.tensors(slot)
        assert any(bool((x == 3).all()) for x in found if x.shape == (8,))
        assert any(torch.equal(x, (a + b.T) * 2.5) for x in found if x.shape == a.shape)
        torch.testing.assert_close(stage.inputs.tensors(slot), [a, b])


def test_fork_takes_less_than_a_second_of_processor_time(fork_server: ForkServer) -> None:
    """Importing torch takes longer. Processor time does not depend on other processes."""
    stage = Stage(1)
    stage.open(fork_server).close()
    with stage.open(fork_server) as session:
        fields = Path(f"/proc/{session.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    assert ticks / os.sysconf("SC_CLK_TCK") < 1


def test_guards_detect_a_changed_byte(fork_server: ForkServer) -> None:
    arena = Arena.create(layout_of([torch.zeros(3), torch.zeros(5, dtype=torch.int16)]), 2, "cpu")
    arena.poison(0xFF)
    assert bool(arena.tensors(1)[0].isnan().all())
    assert arena.guards_hold()
    assert arena.memory is not None
    arena.memory[arena.layout.size + arena.layout.leaves[0].offset - 1] = 0
    assert arena.guards_hold(0)
    assert not arena.guards_hold(1)


def test_shared_memory_cannot_shrink_and_guards_can_be_restored() -> None:
    arena = Arena.create(layout_of([torch.zeros(9)]), 1, "cpu")
    with pytest.raises(PermissionError):
        os.ftruncate(arena.describe()[1][0], 0)
    assert arena.memory is not None
    arena.memory[0] = 0
    assert not arena.guards_hold()
    arena.mend_guards()
    assert arena.guards_hold()


def test_arena_holds_empty_and_scalar_tensors() -> None:
    tensors = [torch.zeros(0, 3), torch.tensor(2.0), torch.tensor([True, False])]
    arena = Arena.create(layout_of(tensors), 1, "cpu")
    arena.write(tensors)
    for kept, given in zip(arena.snapshot(), tensors, strict=True):
        assert torch.equal(kept, given)


def test_record_of_wrong_size_or_status_is_forged() -> None:
    ours, theirs = socket_pair()
    with ours, theirs:
        send_record(theirs, Record(7, 1, Status.DONE, 99))
        assert receive_record(ours) == Record(7, 1, Status.DONE, 99)
        forged = (b"short", b"x" * 25, struct.pack("<QIBxxxQ", 0, 0, 9, 0),
                  struct.pack("<QIBxxxQ", 0, 0, Status.TIMED_OUT, 0))  # fmt: skip
        for packet in forged:
            theirs.send(packet)
            with pytest.raises(ForgedRecord):
                receive_record(ours)
        theirs.close()
        assert receive_record(ours) is None


def test_message_larger_than_a_packet_arrives_complete() -> None:
    ours, theirs = socket_pair()
    with ours, theirs:
        message = {"text": "x" * (1 << 20)}
        read, write = os.pipe()
        send_message(theirs, message, (read,))
        os.close(read)
        received = receive_message(ours)
        assert received is not None
        assert received[0] == message
        os.write(write, b"through")
        assert os.read(received[1][0], 7) == b"through"
        os.close(received[1][0])
        os.close(write)


def test_crashed_session_reports_its_signal_and_closes(fork_server: ForkServer) -> None:
    stage = Stage(1)
    session = stage.open(fork_server, "__import__('os').abort()")
    with pytest.raises(SessionEnded) as ended:
        session.block(stage.inputs, stage.outputs, [(0, 0)], deadline_s=60)
    assert ended.value.status is Status.CRASHED
    assert ended.value.detail == "killed by SIGABRT"
    assert session.closed


def test_threads_may_share_a_fork_server(fork_server: ForkServer) -> None:
    living = set(fork_server.living)

    def opened_and_ended(_: int) -> int:
        with Stage(1).open(fork_server) as session:
            return session.pid

    # Enough sessions that one starts while another is being stopped, which must not affect it.
    with ThreadPoolExecutor(6) as threads:
        pids = list(threads.map(opened_and_ended, range(40)))
    assert len(set(pids)) == 40
    assert fork_server.living == living


@pytest.mark.slow
def test_all_processes_end_when_the_referee_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_worker_sessions as t, time\n"
        "n = t.ForkServer(); s = t.Stage(1).open(n)\n"
        "print(n._process.pid, s._child.pid, flush=True); time.sleep(600)\n"
    )
    folder = str(Path(__file__).parent)
    referee = subprocess.Popen(
        [sys.executable, "-c", program, folder],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert referee.stdout is not None
    pids = [int(pid) for pid in referee.stdout.readline().split()]
    assert len(pids) == 2
    referee.kill()
    referee.wait()
    referee.stdout.close()
    deadline = time.monotonic() + 60
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
