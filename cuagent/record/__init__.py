"""The record of a run: an append-only log, blobs, and the work folder under git.

folder = new_run("softmax")
log = RunLog(folder)
log.write("session", task=task, ...)
log.message(Message("user", "..."))
records = read_records(folder)
messages = conversation(records)
"""

from cuagent.record.folder import RUNS, RecordError, RunFolder, find_run, list_runs, new_run
from cuagent.record.history import close_open_calls, conversation, message_of
from cuagent.record.log import RunLog, last_message, read_records
from cuagent.record.plain import plain
from cuagent.record.redact import is_secret_name, redactor
from cuagent.record.work import commit_work, diff_work, init_work, restore_work

__all__ = [
    "RUNS",
    "RecordError",
    "RunFolder",
    "RunLog",
    "close_open_calls",
    "commit_work",
    "conversation",
    "diff_work",
    "find_run",
    "init_work",
    "is_secret_name",
    "last_message",
    "list_runs",
    "message_of",
    "new_run",
    "plain",
    "read_records",
    "redactor",
    "restore_work",
]
