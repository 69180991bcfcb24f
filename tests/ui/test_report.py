"""The page of one run: complete, escaped, without network, and drawn by a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cuagent.attempt import Attempt
from cuagent.build.result import Build
from cuagent.judgement import Judgement
from cuagent.measure.rungs import Gain, Ladder, Rung
from cuagent.record import plain
from cuagent.score import Score
from cuagent.task import Precision, Task
from cuagent.timing import Arm, Effort, Floor, Ratio, Timing
from cuagent.ui.report import report
from cuagent.verdict import Reason, RuleResult, Verdict

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
KERNEL = "// </pre><script>alert(1)</script>\n__global__ void scale(float* y) { y[0] = 2.0f; }\n"
RIGHT = Attempt((("kernels/scale.cu", KERNEL), ("model_new.py", "class ModelNew: ...\n")))
WRONG = Attempt((("kernels/scale.cu", "int wrong;\n"), ("model_new.py", "class ModelNew: ...\n")))
TASK = Task(Path("net.py"), "Net", "class Net: ...\n")
FREE, GAIN, WHOLE = Ratio(2.0, 1.9, 2.1), Ratio(1.5, 1.4, 1.6), Ratio(3.0, 2.8, 3.2)


def judged(attempt: Attempt) -> Judgement:
    right = attempt is RIGHT
    arms = (Arm("candidate", 1e-5, ()), Arm("eager", 3e-5, ()), Arm("compile", 1.5e-5, ()))
    timing = Timing(
        arms,
        {"eager": WHOLE, "compile": GAIN},
        Effort.QUICK,
        "a named GPU",
        1.0,
        floor=Floor(5e-6, "memory", 5e-6),
        notes=("machine busy: 40% used by other processes",),
    )
    verdict = Verdict(
        right,
        Reason.ACCEPTED if right else Reason.WRONG_VALUES,
        "",
        "t",
        attempt.digest,
        strict=RuleResult(right, 0.25),
        precision=Precision.MATCH,
    )
    gain = Gain("compile", FREE, GAIN, WHOLE, GAIN)
    build = Build(attempt.digest, (), (), True, 0.1)
    score = Score(2 if right else -1)
    return Judgement(
        attempt.digest, build, verdict, timing if right else None, score, gain if right else None
    )


def records() -> list[dict[str, Any]]:
    rungs = (
        Rung("eager", 3e-5, Ratio(1, 1, 1), 1e-7, True, None, None, True),
        Rung("compile", 1.5e-5, FREE, 1e-7, True, None, None, True),
    )
    ladder = Ladder(TASK.digest, "match", "a named GPU", {"torch": "9.9"}, rungs, 1.0)
    found: list[dict[str, Any]] = [
        {
            "type": "session",
            "time": 0.0,
            "task": {**plain(TASK), "name": TASK.name, "digest": TASK.digest},
        },
        {"type": "ladder", "time": 1.0, **plain(ladder)},
    ]
    for n, attempt in enumerate((WRONG, RIGHT), 1):
        files = dict(attempt.files)
        found.append(
            {"type": "attempt", "time": n, "n": n, "digest": attempt.digest, "files": files}
        )
        judgement = plain(judged(attempt)) | {"attempt": n}
        found.append({"type": "judgement", "time": 10.0 * n, "effort": "quick", **judgement})
    found.append({"type": "end", "time": 30.0, "stop": "submitted", "summary": "attempt 2"})
    return found


def test_page_states_speed_precision_kernels_and_installation() -> None:
    text = report("run-1", records())
    for part in (
        "3.00 times as fast as eager [2.80, 3.20]: 2.00 is free (compile)",
        "the kernel adds 1.50",
        "a named GPU",
        "torch 9.9",
        "machine busy: 40%",
        "The strict rule: passed, largest error 0.25 times its bound",
        "The task admits: match",
        "pip install ./net_net_fast",
    ):
        assert part in text, part
    assert text.count("<svg") == 4
    assert "no timed result yet" not in text
    assert "attempt 1, quick: wrong values" in text
    assert "attempt 2, quick: 3.00x eager" in text
    assert "floor (memory)" in text
    assert ">50%</text>" in text, "share of the roofline of the kernel"
    assert re.search(r'<span class="k\w?">__global__|<span class="k\w?">void', text), "highlighted"


def test_page_loads_nothing_and_escapes_the_log() -> None:
    text = report("<b>run</b>", records())
    assert not re.search(r"https?:|src=|@import|url\(|<link|<script", text)
    assert "<b>run" not in text
    assert "default-src 'none'" in text


def test_page_claims_only_what_the_intervals_show(monkeypatch: pytest.MonkeyPatch) -> None:
    text = with_gain(monkeypatch, Ratio(0.9, 0.8, 1.1), Ratio(1.8, 1.7, 1.9))
    assert '<p class="good">1.80 times as fast as eager' in text
    assert "if the kernel adds to that could not be told: 0.90 [0.80, 1.10]" in text
    text = with_gain(monkeypatch, Ratio(0.5, 0.4, 0.6), Ratio(1.0, 0.4, 3.0))
    assert '<p class="dim">Could not tell if it is faster than eager: 1.00 [0.40, 3.00]' in text
    assert "the kernel is slower than that: 0.50" in text


def with_gain(monkeypatch: pytest.MonkeyPatch, kernel: Ratio, whole: Ratio) -> str:
    monkeypatch.setitem(globals(), "GAIN", kernel)
    monkeypatch.setitem(globals(), "WHOLE", whole)
    return report("run-1", records())


def test_page_of_a_captured_module_has_the_script() -> None:
    shape = {"task": "task.py", "calls": 8, "speedup": 2.0, "low": 1.9, "high": 2.1}
    other = {"task": "<b>", "calls": "<i>", "covered": False, "why": "slower: <u>0.80x"}
    script = {
        "captured": {"module": "net.layers.0.mlp", "kind": "MLP"},
        "shapes": [shape | {"covered": True}, shape | other],
        "share": 0.25,
        "script": 1.14,
        "timed": {"before_s": [2.0, 2.2], "after_s": [1.7, 1.6], "swapped": 9, "calls": 12},
    }
    text = report("run-1", records(), script)
    for part in (
        "<h1>MLP modules, as net.layers.0.mlp of the script</h1>",
        "<td>task.py</td><td>8</td><td>2.00x [1.90, 2.10]</td>",
        "<td>&lt;b&gt;</td><td>&lt;i&gt;</td><td>your module (slower: &lt;u&gt;0.80x)</td>",
        "took 25% of the script&#x27;s steps; with these results the steps should become 1.14x",
        "the steps took 2 s without the kernel and 1.6 s with it; the kernel ran in 9 of 12 calls",
        "the modules of class MLP in your model",
    ):
        assert part in text, part
    assert "In your script" not in report("run-1", records(), {"captured": "forged"})


def test_run_without_a_result_has_a_page() -> None:
    text = report("run-1", records()[:1])
    assert "No attempt was accepted." in text
    assert text.count("no timed result yet") == 4
    assert "There is no kernel." in text


def test_browser_draws_the_page(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser on this machine")
    page = tmp_path / "page.html"
    page.write_text(report("run-1", records()))
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "Content-Security-Policy" not in done.stderr, "no style was refused"
    assert done.stdout.count("<svg") == 4
    assert "alert(1)" in done.stdout
