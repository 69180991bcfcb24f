"""Play episodes of cuagent's agent loop inside verl: verl's servers sample, Ray actors judge.

The file agent_loop.yaml of `cuagent train export-verl` names the class `CuagentLoop`. This module
imports verl.
Not covered: the advantages (`verl_gae.py`).
Invariant: verl gets the ids that its servers sampled, and no token after the last sampled one,
because verl puts the reward on the last token.
"""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from cuagent.agent.prompt import opening
from cuagent.agent.tools import TOOLS
from cuagent.task import Device, load_task
from cuagent.timing import Effort
from cuagent.training.engines.engine import EngineError, Request, Sampled
from cuagent.training.engines.verl_rows import rows_of
from cuagent.training.judging.ray_pool import RayPool
from cuagent.training.policy.chat import Chat
from cuagent.training.rollout.episode import Play, play_one

EPISODES = ThreadPoolExecutor(256, thread_name_prefix="episode")
"""Thread pool in which episodes are played, one per thread; the threads mostly wait for a server or
a verdict."""


@cache
def shared_pool(actors: int, timed: bool, gpus: bool) -> RayPool:
    """Return the pool of judging Ray actors, which all processes of verl share."""
    return RayPool(actors, Effort.QUICK if timed else None, gpus, name="judge")


class CuagentLoop(AgentLoopBase):
    """Agent loop of verl that plays one episode with cuagent's tools. The keyword arguments are the
    fields of agent_loop.yaml."""

    def __init__(
        self,
        *args: Any,
        device: str,
        turns: int,
        context: int,
        reply: int,
        actors: int,
        timed: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.device = Device(device)
        # As in other rollouts, an episode whose kernels are timed begins with the ladder.
        self.play = Play(TOOLS, opening, turns, context, reply, ladder=timed)
        self.pool = shared_pool(actors, timed, self.device is Device.CUDA)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Play one episode; return one output per context window. The last window's output has the
        reward."""
        home, name = asyncio.get_running_loop(), uuid4().hex

        def ask(request: Request) -> Sampled:
            answer = self._sample(request, sampling_params, name)
            return asyncio.run_coroutine_threadsafe(answer, home).result()

        def episode() -> list[dict[str, Any]]:
            task = load_task(row["extra_info"]["task"], device=self.device)
            chat, judge = Chat(self.tokenizer), self.pool.judge_for(task)
            with tempfile.TemporaryDirectory() as root:
                played = play_one(task, judge, "policy", chat, ask, self.play, 0, Path(root))
            return rows_of(played)

        rows = await home.run_in_executor(EPISODES, episode)
        extra: dict[str, Any] = {"turn_scores": [], "tool_rewards": [], "reward_extra_info": {}}
        return [
            AgentLoopOutput(**fields, metrics=AgentLoopMetrics(), extra_fields=dict(extra))
            for fields in rows
        ]

    async def _sample(self, request: Request, params: dict[str, Any], name: str) -> Sampled:
        """Return the tokens that verl's server sampled for a request.

        `params`: verl's sampling parameters; the temperature is theirs, because it differs for
        validation.
        """
        out = await self.server_manager.generate(
            request_id=name,
            prompt_ids=list(request.prompt),
            sampling_params={**params, "max_tokens": request.max_tokens},
        )
        if not out.token_ids or out.log_probs is None:
            raise EngineError("verl returned no log-probabilities; set calculate_log_probs=True")
        cut = out.token_ids[-1] != self.tokenizer.eos_token_id
        return Sampled(tuple(out.token_ids), tuple(out.log_probs), cut)
