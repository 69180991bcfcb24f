"""Convert tasks and episodes to rows for verl.

`verl_export.py` and `verl_loop.py` use this module. It does not import verl, so its tests need no
verl.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuagent.agent.prompt import opening
from cuagent.task import Task
from cuagent.training.data.segments import Episode, Kind
from cuagent.training.policy.chat import template_message


def task_row(number: int, task: Task, file: Path) -> dict[str, Any]:
    """Return a task as a row of verl's data set. Only verl's length filter reads the row's prompt.

    `file`: path of the task file that every machine sees.
    """
    return {
        "data_source": "cuagent",
        "agent_name": "cuagent",
        "prompt": [template_message(m) for m in opening(task)],
        "ability": "kernel",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": number, "task": str(file), "digest": task.digest},
    }


def rows_of(episode: Episode) -> list[dict[str, Any]]:
    """Return the fields of verl's AgentLoopOutput for each context window of an episode.

    Tokens after the last sampled one are left out. Only the last window has the reward; verl copies
    the reward to the other windows.
    """
    windows: dict[int, list[Any]] = {}
    for segment in episode.segments:
        windows.setdefault(segment.context, []).append(segment)
    acting = [w for w in windows.values() if any(s.kind is Kind.ACTION for s in w)]
    return [
        fields(window) | {"reward_score": episode.reward if window is acting[-1] else None}
        for window in acting
    ]


def fields(window: Sequence[Any]) -> dict[str, Any]:
    """Return the prompt and response fields of verl's AgentLoopOutput for one context window.

    `window`: the window's segments.
    """
    last = max(at for at, s in enumerate(window) if s.kind is Kind.ACTION)
    first = next(at for at, s in enumerate(window) if s.kind is Kind.ACTION)
    response = window[first : last + 1]
    return {
        "prompt_ids": [i for s in window[:first] for i in s.ids],
        "response_ids": [i for s in response for i in s.ids],
        "response_mask": [int(s.kind is Kind.ACTION) for s in response for _ in s.ids],
        "response_logprobs": [p for s in response for p in s.logprobs or [0.0] * len(s.ids)],
        "num_turns": 2 * sum(s.kind is Kind.ACTION for s in response),
    }
