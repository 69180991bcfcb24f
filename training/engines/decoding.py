"""Sample the next token of many conversations with a recorded CUDA graph.

A decoding pass computes one new token of each conversation. Its hundreds of small kernels take less
time than launching them from Python, so they are recorded once and then launched together. The
kernels read everything that changes from buffers with fixed addresses.
Not covered: passes over prompts (`cached.py`), the attention (`policy/cached_attention.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cuagent.training.engines.engine import lacks_memory, sample_tokens
from cuagent.training.policy.cached_attention import KeyValues, Pass


@dataclass(frozen=True)
class Next:
    """State of one conversation for a decoding pass: its last token, after which the next token is
    sampled."""

    token: int
    start: int
    """Index in `KeyValues` of the conversation's first token."""
    past: int
    """Number of earlier tokens of the conversation; their keys and values are in memory."""
    temperature: float
    uniform: float
    """Random number in [0, 1) that determines the sampled token."""


class DecodingStep:
    """Callable that samples the next token of up to `rows` conversations in one pass, on a GPU as a
    CUDA graph.

    `spare`: index in `memory` that no conversation uses; unused rows write there. `longest`: upper
    bound of a conversation's tokens. `pool`: CUDA memory pool shared with other recorded steps;
    None: a new pool.
    """

    def __init__(
        self,
        actor: Any,
        memory: KeyValues,
        rows: int,
        longest: int,
        spare: int,
        pool: Any = None,
    ) -> None:
        self.actor = actor
        self.memory = memory
        self.rows = rows
        self.longest = longest
        self.spare = spare
        self.pool = pool
        self.records = actor.device.type == "cuda"
        """True if the step is replayed as a CUDA graph; False if each kernel is launched anew."""
        device, pinned = actor.device, self.records
        # Rows of `whole`: token, position, index to write, first index, length; of `real`:
        # temperature, uniform number. The buffers of the host are copied to those of the device.
        self.host_whole = torch.zeros(5, rows, dtype=torch.int64, pin_memory=pinned)
        self.host_real = torch.zeros(2, rows, dtype=torch.float64, pin_memory=pinned)
        self.whole = torch.zeros(5, rows, dtype=torch.int64, device=device)
        self.real = torch.zeros(2, rows, dtype=torch.float64, device=device)
        self.starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self.each = torch.arange(rows, device=device)
        self.mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
        self.graph: Any = None
        self.found: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def __call__(self, nexts: Sequence[Next]) -> tuple[list[int], list[float]]:
        """Sample the next token of each conversation; return (tokens, log-probabilities)."""
        unused = [(0, 0, self.spare, self.spare, 1)] * (self.rows - len(nexts))
        numbers = [(n.token, n.past, n.start + n.past, n.start, n.past + 1) for n in nexts]
        self.host_whole.copy_(torch.tensor(numbers + unused).T)
        draws = [(n.temperature, n.uniform) for n in nexts] + [(1.0, 0.0)] * len(unused)
        self.host_real.copy_(torch.tensor(draws, dtype=torch.float64).T)
        self.whole.copy_(self.host_whole, non_blocking=True)
        self.real.copy_(self.host_real, non_blocking=True)
        if self.graph is None and self.records:
            self.record()
        if self.graph is None:
            self.compute()
        else:
            self.graph.replay()
        assert self.found is not None
        tokens, logprobs = (x[: len(nexts)].tolist() for x in self.found)
        return tokens, logprobs

    def record(self) -> None:
        """Record the kernels of `compute` as a CUDA graph, after one run that allocates what
        libraries need.

        A model that waits for the GPU within a pass cannot be recorded; its kernels are launched in
        each pass.
        """
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may use the GPU meanwhile, for instance to compile a kernel.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                self.compute()
        except RuntimeError as error:
            if lacks_memory(error):
                raise
            torch.cuda.synchronize()
            self.records = False
            return
        self.graph, self.pool = graph, graph.pool()

    def compute(self) -> None:
        """Run the pass on the input buffers; write tokens and log-probabilities to the buffer
        `found`."""
        tokens, positions, write, starts, lengths = self.whole.unbind()
        first = torch.cat([starts, starts[-1:]]).to(torch.int32)
        cached = Pass(
            self.memory, (), 1, self.longest, write, self.starts, first, lengths.to(torch.int32)
        )
        logits = self.actor(
            input_ids=tokens[None],
            position_ids=positions[None],
            attention_mask=self.mask,
            use_cache=False,
            logits_to_keep=self.each,
            cached=cached,
        ).logits[0]
        self.found = sample_tokens(logits, self.real[0].float(), self.real[1])


def rounded(rows: int) -> int:
    """Return the number of rows of the recorded step that serves `rows` conversations: 1, 2, 4, or
    a multiple of 8."""
    return next((n for n in (1, 2, 4) if rows <= n), -(-rows // 8) * 8)
