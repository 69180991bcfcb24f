"""Fuzz the agent with random replies and kills: no crash, a valid history, a complete log.

    python benchmarks/fuzz.py [REPLIES] [KILLS]      # 2000 and 200 by default

Replies come over HTTP in all three protocols, from the server of tests/models: malformed arguments,
unknown tools, huge and strange strings, invalid UTF-8, repeated ids, empty messages, calls after
submit, closed connections. Every request is checked against its provider's rules. A kill is a
SIGKILL to a working process at a random moment; the run is then resumed from its log, which must
contain every line that was written. Exit code 1 at the first failure; it prints the seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "models"), str(ROOT / "tests" / "agent")]

import provider  # noqa: E402
from rules import check_anthropic, check_openai, check_responses  # noqa: E402
from scale_task import SOURCE  # noqa: E402

from cuagent.agent import Budget, Run, Stop, resume_run, run_agent, start_run  # noqa: E402
from cuagent.models.anthropic import AnthropicModel  # noqa: E402
from cuagent.models.endpoint import ANTHROPIC, OPENAI  # noqa: E402
from cuagent.models.openai import OpenAIModel  # noqa: E402
from cuagent.models.responses import ResponsesModel  # noqa: E402
from cuagent.models.scripted import ScriptedModel  # noqa: E402
from cuagent.record import RunFolder, conversation, read_records  # noqa: E402
from cuagent.task import Task, load_task  # noqa: E402

REPLIES_PER_RUN = 25
"""Number of random replies in one run. It is small, because each request repeats the whole
history."""
NAMES = ["write", "read", "edit", "multi_edit", "glob", "grep", "todo", "bash_output", "compile"]
ODD = ["", "bassh", "verify ", "a" * 300, "ü", "\x00", "bash\n", "functions.bash", "submit"]
TEXTS = [
    "",
    " \n",
    "fine",
    "\x00\x1b[31m",
    "é\u2028\u202e",
    "x" * 300_000,
    "[" * 50_000,
    "{}",
    "null",
]
NO_JUDGE: Any = None
PROTOCOLS = {
    "openai": (OpenAIModel, OPENAI, check_openai),
    "responses": (ResponsesModel, OPENAI, check_responses),
    "anthropic": (AnthropicModel, ANTHROPIC, check_anthropic),
}


def main() -> int:
    replies, kills = (int(n) for n in [*sys.argv[1:], "2000", "200"][:2])
    provider.PIECE = 20_000
    os.environ |= {"OPENAI_API_KEY": "planted-secret-1", "ANTHROPIC_API_KEY": "planted-secret-2"}
    with tempfile.TemporaryDirectory(prefix="cuagent-fuzz-") as name:
        root = Path(name)
        (root / "scale.py").write_text(SOURCE)
        task = load_task(str(root / "scale.py"), device="cpu")
        start = time.monotonic()
        stops: dict[str, int] = {}
        for seed in range(-(-replies // REPLIES_PER_RUN)):
            protocol = list(PROTOCOLS)[seed % len(PROTOCOLS)]
            stop = fuzz_run(task, root / "runs", protocol, seed)
            stops[stop] = stops.get(stop, 0) + 1
        print(f"{replies} replies in {time.monotonic() - start:.0f} s; runs by their stop: {stops}")
        start, steps = time.monotonic(), 0
        for seed in range(kills):
            steps += kill_and_resume(task, root, seed)
        print(f"{kills} kills in {time.monotonic() - start:.0f} s; {steps} steps resumed")
    return 0


def fuzz_run(task: Task, root: Path, protocol: str, seed: int) -> Stop:
    """Run the agent once with random replies; return the stop reason. Raises AssertionError if a
    check fails."""
    draw = random.Random(seed)
    make, endpoint, check = PROTOCOLS[protocol]
    answers = [answer(draw) for _ in range(REPLIES_PER_RUN)]
    run = start_run(task, NO_JUDGE, model=protocol, root=root, budget=Budget(cost=None))
    with provider.serve(*answers, {"status": 400, "error": "that is all"}) as server:
        url = server.url + "/v1" * (protocol != "anthropic")
        quick = replace(endpoint, base_url=url, retry_delay=0.001, tries=9, stall=5.0)
        model: Any = make("m", quick)
        while True:
            run.budget = replace(run.budget, steps=run.steps + REPLIES_PER_RUN)
            stop = run_agent(run, model)
            if stop is Stop.MODEL_FAILED or len(server.requests) > REPLIES_PER_RUN:
                break
            run.inbox.put("go on")
        for request in server.requests:
            check(request)
    check_run(run, seed)
    run.log.close()
    return stop


def answer(draw: random.Random) -> dict[str, Any]:
    """Return a random reply in the formats of all protocols, or a random fault of the server."""
    if draw.random() < 0.1:
        faults: list[dict[str, Any]] = [
            {"status": 429},
            {"drop": True},
            {"garble": b'data: {"x": "\xff\xc3\x28"}\n\n'},
            {"garble": b"data: nonsense\n\n"},
        ]
        return {"text": "cut", "blocks": [{"type": "text", "text": "cut"}], **draw.choice(faults)}
    text = draw.choice(TEXTS)
    calls = [
        {
            "id": draw.choice(["c1", "c2", "", "ü" * 90, f"n{draw.random()}"]),
            "name": draw.choice(NAMES if draw.random() < 0.7 else ODD),
            "arguments": arguments(draw),
        }
        for _ in range(draw.choice([0, 0, 1, 1, 1, 2, 5]))
    ]
    uses = [
        {"type": "tool_use", "id": c["id"], "name": c["name"], "input": c["arguments"]}
        for c in calls
    ]
    thinking = [{"type": "thinking", "thinking": "hm", "signature": draw.choice(["", "s"])}]
    words = [{"type": "text", "text": text}] if text else []
    reasoning = draw.choice(["", "hm"])
    return {"text": text, "calls": calls, "reasoning": reasoning} | {
        "blocks": thinking * draw.choice([0, 1]) + words + uses,
    }


def arguments(draw: random.Random) -> str:
    """Return the arguments of a tool call as text: correct, almost correct or random."""
    keys = [
        "path",
        "text",
        "old",
        "new",
        "pattern",
        "first",
        "items",
        "edits",
        "job",
        "wait",
        "all",
    ]
    values: list[Any] = [
        *TEXTS,
        0,
        -1,
        10**30,
        1.5,
        True,
        None,
        [],
        {},
        [{}],
        [[1]],
        "a.py",
        "../x",
    ]
    items = {draw.choice(keys): draw.choice(values) for _ in range(draw.randrange(4))}
    raw = json.dumps({"path": "a.py", "text": "x = 1\n"} if draw.random() < 0.2 else items)
    match draw.randrange(5):
        case 0:
            return raw[: draw.randrange(len(raw) + 1)]
        case 1:
            return draw.choice(
                ["", "[]", "null", "3", "{", "NaN", '{"a": NaN}', "\x00", "[" * 9999]
            )
    return raw


ENDLESS_RUN = """\
import itertools, sys
from pathlib import Path
from cuagent.agent import Budget, run_agent, start_run
from cuagent.models.scripted import reply_of
from cuagent.task import load_task

class Endless:
    name = "endless"
    steps = itertools.count()
    def query(self, messages, tools, on_text):
        n = next(self.steps)
        print(n, flush=True)
        text = "x" * (n * 997 % 20000)
        write = {"name": "write", "arguments": {"path": f"a{n % 7}.py", "text": text}}
        read = {"name": "read", "arguments": {"path": "reference.py", "first": n % 3 + 1}}
        todo = {"name": "todo", "arguments": {"items": [{"text": str(n), "state": "open"}]}}
        return reply_of({"text": str(n), "calls": [write, read, todo], "cost": 0.01}, n)

root = Path(sys.argv[1])
task = load_task(str(root / "scale.py"), device="cpu")
run = start_run(task, None, model="endless", root=root / "runs", budget=Budget(None, None, None))
print(run.folder.path, flush=True)
run_agent(run, Endless())
"""


def kill_and_resume(task: Task, root: Path, seed: int) -> int:
    """Kill a working process at a random moment and resume its run; return the number of the run's
    steps."""
    draw = random.Random(seed)
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS_RUN, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    folder = RunFolder(Path(process.stdout.readline().strip()))
    time.sleep(draw.random() * 0.5)
    os.kill(process.pid, signal.SIGKILL)
    started = len(process.stdout.read().split())
    process.wait()
    before = read_records(folder)
    run = resume_run(folder, task, NO_JUDGE, model="scripted")
    assert run.steps >= started - 1, f"kill {seed}: {started} steps started, {run.steps} resumed"
    assert read_records(folder)[: len(before)] == before, f"kill {seed}: the log was changed"
    run_agent(run, ScriptedModel([{"calls": [{"name": "submit"}]}]))
    check_run(run, seed)
    run.log.close()
    return run.steps


def check_run(run: Run, seed: int) -> None:
    """Check the invariants of a run's log and messages. Raises AssertionError that names the
    seed."""
    records = read_records(run.folder)
    assert conversation(records) == run.messages, f"seed {seed}: log and memory differ"
    ids = [c.id for m in run.messages for c in m.tool_calls]
    assert len(set(ids)) == len(ids), f"seed {seed}: an id occurs twice"
    answered = [m.tool_call_id for m in run.messages if m.role == "tool"]
    assert answered == ids, f"seed {seed}: calls and results differ"
    assert b"planted-secret" not in run.folder.log.read_bytes(), f"seed {seed}: a secret in the log"


if __name__ == "__main__":
    sys.exit(main())
