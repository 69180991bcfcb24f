"""Write runs and episodes in other formats: chat JSONL, ATIF, parquet.

Chat JSONL is for supervised trainers. ATIF is the Agent Trajectory Interchange Format (v1.4) of the
Harbor project. Parquet contains cuagent's episodes with their token ids, and needs pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cuagent.message import Message
from cuagent.record import RunFolder, end_record, message_of, read_records
from cuagent.training.data.segments import Episode, Kind, RecordError
from cuagent.training.data.windows import unique_messages, windows_of
from cuagent.training.policy.chat import parsed_arguments, template_message


def chat_rows(folder: RunFolder) -> list[dict[str, Any]]:
    """Return a run as rows `{"messages", "tools", "reward", ...}`, one row for each context window.

    A message has `sampled` true if the model wrote it, for trainers that can weight messages.
    """
    records = read_records(folder)
    reward = end_of(folder, records)["rewards"]["milestone"]["score"]
    return [
        {
            "id": folder.id,
            "window": number,
            "messages": [
                template_message(m) | {"sampled": m.sampled} for m in map(message_of, window)
            ],
            "tools": [{"type": "function", "function": function(t)} for t in records[0]["tools"]],
            "reward": reward,
        }
        for number, window in enumerate(windows_of(records))
    ]


def write_chat(runs: Iterable[RunFolder], out: Path) -> int:
    """Write runs as chat JSONL; return the number of rows."""
    rows = [json.dumps(row) + "\n" for run in runs for row in chat_rows(run)]
    out.write_text("".join(rows), encoding="utf-8")
    return len(rows)


def atif(folder: RunFolder) -> dict[str, Any]:
    """Convert a run to an ATIF trajectory.

    Messages that the run undid are left out. The summary of a compaction becomes a user step.
    """
    records = read_records(folder)
    session, end = records[0], end_of(folder, records)
    calls = {r["id"]: r for r in records if r["type"] == "call"}
    steps: list[dict[str, Any]] = []
    for record in unique_messages(windows_of(records)):
        message = message_of(record)
        if message.role == "tool":
            result = {"source_call_id": message.tool_call_id, "content": message.content}
            steps[-1].setdefault("observation", {"results": []})["results"].append(result)
            continue
        steps.append(atif_step(len(steps) + 1, record, message, calls.get(record.get("call"))))
    usage = end["usage"]
    return {
        "schema_version": "ATIF-v1.4",
        "session_id": folder.id,
        "agent": {
            "name": "cuagent",
            "version": session["cuagent"],
            "model_name": session["model"],
            "tool_definitions": [
                {"type": "function", "function": function(t)} for t in session["tools"]
            ],
        },
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": usage["input"] + usage["cache_read"] + usage["cache_write"],
            "total_completion_tokens": usage["output"],
            "total_cached_tokens": usage["cache_read"],
            "total_cost_usd": end["cost"],
            "total_steps": len(steps),
        },
        "extra": {
            "stop": end["stop"],
            "reward": end["rewards"]["milestone"]["score"],
            "task": session["task"]["digest"],
        },
    }


def atif_step(
    number: int, record: Mapping[str, Any], message: Message, call: Mapping[str, Any] | None
) -> dict[str, Any]:
    source = {"assistant": "agent"}.get(message.role, message.role)
    step: dict[str, Any] = {
        "step_id": number,
        "timestamp": datetime.fromtimestamp(record["time"], UTC).isoformat(),
        "source": source,
        "message": message.content,
    }
    if source != "agent":
        return step
    if message.reasoning:
        step["reasoning_content"] = message.reasoning
    if message.tool_calls:
        step["tool_calls"] = [
            {
                "tool_call_id": c.id,
                "function_name": c.name,
                "arguments": args
                if isinstance(args := parsed_arguments(c), dict)
                else {"raw": args},
            }
            for c in message.tool_calls
        ]
    if call is not None:
        usage, tokens = call["usage"], call.get("tokens") or {}
        step["model_name"] = call["model"]
        step["metrics"] = {
            "prompt_tokens": usage["input"] + usage["cache_read"] + usage["cache_write"],
            "completion_tokens": usage["output"],
            "cached_tokens": usage["cache_read"],
            "cost_usd": call["cost"],
        }
        if tokens:
            step["metrics"] |= {
                "prompt_token_ids": tokens["prompt"],
                "completion_token_ids": tokens["completion"],
                "logprobs": tokens["logprobs"],
            }
    return step


def write_atif(runs: Iterable[RunFolder], out: Path) -> int:
    """Write one `ID.json` for each run into the folder `out`; return the number of files."""
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for run in runs:
        (out / f"{run.id}.json").write_text(json.dumps(atif(run), indent=1), encoding="utf-8")
        count += 1
    return count


def write_parquet(episodes: Sequence[Episode], out: Path) -> int:
    """Write episodes to a parquet file; token ids, loss mask and log-probabilities are columns.

    Returns the number of rows. Raises RecordError without pyarrow.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RecordError("parquet needs pyarrow: pip install pyarrow") from error
    rows = []
    for episode in episodes:
        row = {
            k: v for k, v in asdict(episode).items() if k not in ("segments", "calls", "figures")
        }
        parts = episode.segments
        row["input_ids"] = [i for s in parts for i in s.ids]
        row["loss_mask"] = [int(s.kind is Kind.ACTION) for s in parts for _ in s.ids]
        row["context"] = [s.context for s in parts for _ in s.ids]
        row["logprobs"] = [p for s in parts for p in (s.logprobs or [None] * len(s.ids))]
        rows.append(row)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out)
    return len(rows)


def function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a tool specification of a run log to OpenAI's function format."""
    return {
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool["schema"],
    }


def end_of(folder: RunFolder, records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the run's final log record, of type `end`. Raises RecordError if the run has not
    ended."""
    end = end_record(records)
    if end is None:
        raise RecordError(f"run {folder.id} has not ended; export it after it ends")
    return end
