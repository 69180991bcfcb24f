"""The record of a run: an append-only log, blobs, and the work folder under git.

Records of `log.jsonl`, one JSON object a line, each with `type`, `id` and `time`:

- session: v, cuagent, task, model, tools, skill_sha256, budget, config (always the first)
- message: parent, call, role, content, sampled; where not empty: tool_calls (arguments as the
  model wrote them), tool_call_id, reasoning, is_error, provider_state, data
- call: parent, model, sampling, finish, usage (four disjoint counts), cost, ms, tokens (prompt,
  completion, logprobs) where the server gave them; purpose for a call that is no step
- attempt: n, digest, commit, files (path to text)
- ladder: task, rungs, best, later, precision, device, versions, effort, seconds, when, busy, floor,
  notes, settings, own_settings, contract, shown (the last record counts)
- judgement: attempt, effort, build, verdict, timing, score, gain, domain, gains, adds, contract
- checkpoint: message, files (path in the work folder to the digest of its blob)
- device: what, seconds (of judging, timing or profiling)
- branch: message (id of the message that the next one follows), why (undo, compaction)
- resume: model, budget (the run continues after its end or after a kill)
- notice: level, text; for a traceback also tool
- end: stop, summary, error, attempt, rewards (score null: not scored), steps, usage, cost, seconds,
  device_seconds (of judging, timing and profiling), stages (seconds by stage, `durations.py`)

A message follows its `parent`; a branch (undo, retry, compaction) is another message with the same
parent. `{"$blob": sha256, "form": "text"|"json"}` replaces a long value. The run folder also has
evidence files for accepted attempts (`evidence.py`).

Each line ends with an authentication code of this user and machine (`origin.py`). The content of a
log without it is untrusted, so every path and digest of a log is checked before use
(`contained_files.py`).
"""

from cuagent.record.contained_files import (
    RecordError,
    create_file,
    read_file,
    refuse_links,
    write_file,
)
from cuagent.record.evidence import keep_evidence
from cuagent.record.folder import RUNS, RunFolder, find_run, list_runs, new_run
from cuagent.record.history import (
    INTERRUPTED,
    branch_of,
    close_open_calls,
    conversation,
    message_of,
)
from cuagent.record.log import RunLog, leaf_of, read_records
from cuagent.record.plain import plain, plain_judgement
from cuagent.record.redact import is_secret_name, redactor
from cuagent.record.results import public, result
from cuagent.record.revive import (
    attempt_of,
    end_record,
    judgement_of,
    judgements_of,
    ladder_of,
    revive,
)
from cuagent.record.snapshot import FileState, restore_snapshot, take_snapshot
from cuagent.record.work import commit_work, init_work

__all__ = [
    "INTERRUPTED",
    "RUNS",
    "FileState",
    "RecordError",
    "RunFolder",
    "RunLog",
    "attempt_of",
    "branch_of",
    "close_open_calls",
    "commit_work",
    "conversation",
    "create_file",
    "end_record",
    "find_run",
    "init_work",
    "is_secret_name",
    "judgement_of",
    "judgements_of",
    "keep_evidence",
    "ladder_of",
    "leaf_of",
    "list_runs",
    "message_of",
    "new_run",
    "plain",
    "plain_judgement",
    "public",
    "read_file",
    "read_records",
    "redactor",
    "refuse_links",
    "restore_snapshot",
    "result",
    "revive",
    "take_snapshot",
    "write_file",
]
