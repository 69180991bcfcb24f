from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from cuagent.message import Message, ToolCall
from cuagent.record import (
    RecordError,
    RunFolder,
    RunLog,
    conversation,
    find_run,
    list_runs,
    new_run,
    plain,
    read_records,
    redactor,
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run("softmax", tmp_path / ".cuagent" / "runs")


def test_written_records_are_read_back(folder: RunFolder) -> None:
    call = ToolCall("c1", "bash", '{"command": "ls"')
    messages = [
        Message("system", "be quick"),
        Message("user", "go"),
        Message("assistant", "", (call,), reasoning="hm", sampled=True, provider_state=[{"a": 1}]),
        Message("tool", "x", tool_call_id="c1", data={"exit": 0}),
    ]
    with RunLog(folder) as log:
        log.write("session", task={"name": "softmax"})
        for message in messages:
            log.message(message)
    records = read_records(folder)
    assert records[0]["v"] == 1
    assert records[0]["task"] == {"name": "softmax"}
    assert conversation(records) == messages
    assert [r["parent"] for r in records[1:]] == [None, "m2", "m3", "m4"]


def test_long_values_are_stored_as_blobs_and_read_back(folder: RunFolder) -> None:
    text, samples = "ab" * 9000, [0.5 + i for i in range(5000)]
    with RunLog(folder) as log:
        log.write("session", text=text, timing={"samples": samples})
        log.write("notice", text=text)
    assert len(folder.log.read_bytes()) < 2000
    assert len(list(folder.blobs.iterdir())) == 2
    assert read_records(folder)[0]["text"] == text
    assert read_records(folder)[0]["timing"]["samples"] == samples


def test_partial_last_line_is_ignored_and_truncated(folder: RunFolder) -> None:
    with RunLog(folder) as log:
        log.write("session")
        log.message(Message("user", "one"))
    with folder.log.open("ab") as file:
        file.write(b'{"type":"message","id":"m3","conte')
    assert len(read_records(folder)) == 2
    with RunLog(folder) as log:
        log.message(Message("user", "two"))
    assert [m.content for m in conversation(read_records(folder))] == ["one", "two"]


def test_malformed_line_is_reported_by_number(folder: RunFolder) -> None:
    folder.log.write_bytes(b'{"type":"session","v":1}\nnonsense\n{"type":"end"}\n')
    with pytest.raises(RecordError, match=r"log\.jsonl:2: not a record"):
        read_records(folder)


def test_log_of_another_version_is_refused(folder: RunFolder) -> None:
    folder.log.write_bytes(b'{"type":"session","v":7}\n')
    with pytest.raises(RecordError, match="log format 7"):
        read_records(folder)


def test_control_characters_and_surrogates_are_read_back(folder: RunFolder) -> None:
    text = "\x00 \ud800 \u2028 é \x1b[31m\n"
    with RunLog(folder) as log:
        log.write("session")
        log.message(Message("user", text))
        log.message(Message("user", text * 9000))
    first, second = conversation(read_records(folder))
    assert first.content == text
    assert second.content == text * 9000


def test_branch_is_another_parent_and_rewrites_no_record(folder: RunFolder) -> None:
    with RunLog(folder) as log:
        log.write("session")
        root = log.message(Message("user", "root"))
        log.message(Message("user", "left"))
        log.head = root
        log.message(Message("user", "right"))
    records = read_records(folder)
    assert [m.content for m in conversation(records)] == ["root", "right"]
    assert [m.content for m in conversation(records, leaf="m3")] == ["root", "left"]


def test_secrets_are_masked_in_log_and_blobs(folder: RunFolder) -> None:
    secrets = {
        "MY_API_KEY": "correct-horse-battery",
        "HF_TOKEN": "hf_" + "a" * 30,
        "DB_SECRET": "s3cr3t-value-here",
    }
    forms = ["sk-ant-api03-" + "x" * 40, "ghp_" + "Z" * 36, "AKIA" + "Q" * 16]
    with RunLog(folder, redactor({**secrets, "HOME": "/home/somebody"})) as log:
        log.write("session", config={"nested": [*secrets.values(), "/home/somebody"]})
        call = ToolCall("c", "bash", json.dumps({"command": f"echo {forms[0]}"}))
        log.message(Message("assistant", " ".join(forms), (call,)))
        log.write("notice", text=secrets["DB_SECRET"] + "y" * 10000)
    written = b"".join(f.read_bytes() for f in folder.path.rglob("*") if f.is_file()).decode()
    for secret in [*secrets.values(), *forms]:
        assert secret not in written
    assert "/home/somebody" in written


def test_short_values_and_ordinary_words_are_not_masked() -> None:
    redact = redactor({"TOKENIZERS_PARALLELISM": "false"})
    assert redact("false, task-1234567890abcdefghij") == "false, task-1234567890abcdefghij"


def test_killed_writer_loses_no_written_record(folder: RunFolder) -> None:
    code = (
        "import sys, itertools; from pathlib import Path\n"
        "from cuagent.record import RunFolder, RunLog\n"
        "log = RunLog(RunFolder(Path(sys.argv[1]))); log.write('session')\n"
        "for n in itertools.count():\n"
        "    log.write('notice', n=n, text='x' * (n % 9000)); print(n, flush=True)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(folder.path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout
    while folder.log.exists() is False or folder.log.stat().st_size < 100_000:
        time.sleep(0.01)
    os.kill(writer.pid, signal.SIGKILL)
    seen = [int(line) for line in writer.stdout.read().split()]
    writer.wait()
    written = [r["n"] for r in read_records(folder) if r["type"] == "notice"]
    assert written == list(range(len(written)))
    assert len(written) >= len(seen)


def test_dataclasses_become_plain_json() -> None:
    class Colour(StrEnum):
        RED = "red"

    @dataclass(frozen=True)
    class Point:
        x: float
        colour: Colour
        where: Path
        more: tuple[Point, ...] = ()

    inner = Point(float("inf"), Colour.RED, Path("a/b"))
    assert json.loads(json.dumps(plain(Point(1.5, Colour.RED, Path("c"), (inner,))))) == {
        "x": 1.5,
        "colour": "red",
        "where": "c",
        "more": [{"x": "inf", "colour": "red", "where": "a/b", "more": []}],
    }


def test_runs_of_one_second_sort_by_number(tmp_path: Path) -> None:
    for name in ("20261122-120000-2", "20261122-120000-10", "20261122-120000", "20261122-115959-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").touch()
    assert [f.id.removeprefix("20261122-") for f in list_runs(tmp_path)] == [
        "115959-3", "120000", "120000-2", "120000-10",
    ]  # fmt: skip


def test_find_run_accepts_part_of_an_id_and_reports_ambiguity(tmp_path: Path) -> None:
    root = tmp_path / ".cuagent" / "runs"
    first, second = new_run("soft max!", root), new_run("soft max!", root)
    for folder in (first, second):
        RunLog(folder).write("session")
    assert first.id.endswith("-soft-max")
    assert [f.id for f in list_runs(root)] == [first.id, second.id]
    assert find_run(None, root) == find_run("latest", root) == second
    assert find_run(first.id, root) == first
    assert find_run(str(second.path)) == second
    with pytest.raises(RecordError, match="fits 2 runs"):
        find_run("soft", root)
    with pytest.raises(RecordError, match="no run 'conv'"):
        find_run("conv", root)
    assert (tmp_path / ".cuagent" / ".gitignore").read_text() == "*\n"
