"""Run a script under the recorder in a new process, and check the task folder that it wrote."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuagent.capture.names import matches, suggestions

CALLS = 20
"""Default number of calls of each shape whose inputs are recorded."""
QUOTA_MIB = 1024
"""Default limit in MiB of all weights, inputs and results that a capture copies."""
CHECK_S = 600.0
"""Time limit in seconds for the check of a captured folder."""

INTERRUPTED = 130
"""Exit code of `launch.py`, without an answer, after an interrupt before the script began."""


class CaptureRefused(Exception):
    """Error: the capture recorded nothing usable. The message is one line: what happened, what to
    do."""


class ScriptFailed(Exception):
    """Error: the script failed before anything was recorded. The message is one line."""


@dataclass(frozen=True)
class Order:
    """A script to run, and which of its calls to record."""

    script: Path
    arguments: tuple[str, ...] = ()
    module: str | None = None
    calls: int = CALLS
    quota: int = QUOTA_MIB << 20
    stop: bool = False
    out: Path | None = None
    python: tuple[str, ...] = (sys.executable, "-P")
    """Command that starts the interpreter; -P keeps the current folder out of sys.path."""


def run_script(order: Order) -> dict[str, Any]:
    """Run the script of the order under the recorder; return the recorder's answer.

    The script's output is written to stderr. Raises CaptureRefused if the process ended without an
    answer.
    """
    with tempfile.TemporaryDirectory(prefix="cuagent-capture-") as folder:
        answer = Path(folder, "answer.json")
        file = Path(folder, "order.json")
        file.write_text(
            json.dumps(
                {
                    "script": str(order.script),
                    "arguments": order.arguments,
                    "module": order.module,
                    "calls": order.calls,
                    "quota": order.quota,
                    "stop": order.stop,
                    "out": None if order.out is None else str(order.out.resolve()),
                    "answer": str(answer),
                    "cwd": str(Path.cwd()),
                }
            )
        )
        command = [*order.python, "-m", "cuagent.capture.launch", str(file)]
        code = _waited(command)
        if not answer.is_file():
            if code in (INTERRUPTED, -signal.SIGINT):
                raise CaptureRefused(f"{order.script}: interrupted before anything was recorded")
            raise CaptureRefused(
                f"{order.script}: its process ended ({_ended(code)}) before anything could be "
                f"written{'; does it call os._exit?' if code == 0 else ''}; see its output above"
            )
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


def require_capture(order: Order, answer: dict[str, Any]) -> None:
    """Raise CaptureRefused or ScriptFailed, with the reason, if the capture wrote no task
    folder."""
    if "tasks" in answer:
        return
    failed = f"; then the script failed: {answer['failure']}" if answer["failure"] else ""
    if answer["problem"]:
        name = answer.get("called") or order.module
        raise CaptureRefused(f"{name}: {answer['problem']}{failed}")
    if answer["failure"]:
        raise ScriptFailed(
            f"the script failed before {order.module} was called: {answer['failure']}"
        )
    if answer["under_capture"]:
        raise CaptureRefused(
            f"{order.module} was called {answer['under_capture']} times, all under CUDA graph "
            "capture, where its inputs cannot be read; call it once before the capture"
        )
    name = str(order.module)
    near = suggestions(name, answer["known"])
    hint = f"; did you mean {', '.join(near)}?" if near else "; see the names with --list"
    there = any(matches(name, *known.partition(".")[::2]) for known in answer["known"])
    what = "exists, but was never called" if there else "was never called"
    hint = "" if there else hint
    if not (there or near):
        hint = in_processes(answer) or hint
    if threads := answer["elsewhere"]:
        hint = f"; {threads} module calls ran in other threads, which are not recorded"
    raise CaptureRefused(f"{order.module} {what} in {order.script.name}{hint}")


def in_processes(answer: dict[str, Any]) -> str:
    """Return a hint, with its separator, for a script that started processes; else ""."""
    if not (count := answer["processes"]):
        return ""
    return (
        f"; the script started {count} process{'es' * (count > 1)}, whose calls are not recorded: "
        "run it as one process (for distributed training, with a world size of 1)"
    )


def check_folder(folder: Path, python: Sequence[str]) -> dict[str, Any]:
    """Rebuild a captured module in a new process and compare its result with the recorded call.

    Returns {"error": text} or {"difference": share of the tolerance or None, "note": text}.
    """
    command = [*python, "-m", "cuagent.capture.replay", str(folder.resolve())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"the check did not end within {CHECK_S:.0f} s"}
    lines = done.stdout.strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()[-1:] or [_ended(done.returncode)]
        return {"error": last[0]}
    return found


def notes(manifest: dict[str, Any]) -> list[str]:
    """Return one line of text for each part of the script's module that the capture omits or
    changes."""
    lines = []
    first = manifest["shapes"][0]
    if manifest["failure"]:
        count = manifest["calls"]
        kept = f"the {count} calls until then are kept" if count > 1 else "its one call is kept"
        lines.append(f"the script failed ({manifest['failure']}); {kept}")
    if manifest["compiled"]:
        lines.append("the script uses torch.compile; it ran without it while it was recorded")
    if any(shape["training"] for shape in manifest["shapes"]):
        lines.append("recorded in training mode; a task is judged in eval mode")
    if wanted := calls_with_gradients(manifest):
        lines.append(
            f"{wanted} of {manifest['calls']} calls want gradients: a package runs your module "
            "there, unless it is made with --backward"
        )
    if objects := manifest.get("objects"):
        lines.append(
            f"a package keeps your module, because it cannot repeat its calls: {_some(objects)}; "
            "name a module inside"
        )
    if changed := manifest.get("in_place"):
        lines.append(
            f"changed in place: {_some(changed)}; the task copies them in each call and a package "
            "writes the new values back, so only --time-script measures the gain"
        )
    if manifest["hooks"]:
        lines.append(f"hooks are not part of the task: {_some(manifest['hooks'])}")
    if manifest["tied"]:
        lines.append(f"tied weights stay tied: {_some(manifest['tied'])}")
    if manifest["skipped"]:
        lines.append(f"left out: {_some(manifest['skipped'])}")
    if aliases := [a for shape in manifest["shapes"] for a in shape["aliases"]]:
        lines.append(f"inputs are separate tensors in the task: {_some(aliases)}")
    if manifest["calls_under_graph_capture"]:
        count = manifest["calls_under_graph_capture"]
        lines.append(f"{count} calls were under CUDA graph capture and are not recorded")
    apart = sum(shape["calls"] for shape in manifest["shapes"] if shape["task"] is None)
    if apart := apart + manifest["calls_of_other_forms"]:
        lines.append(f"calls with other arguments, which keep the original module: {apart}")
    if first["autocast"] or any(shape["autocast"] for shape in manifest["shapes"]):
        lines.append("the task runs under the script's autocast")
    return lines


def calls_with_gradients(manifest: dict[str, Any]) -> int:
    """Return the number of recorded calls that needed gradients."""
    return sum(int(shape.get("with_gradients", 0)) for shape in manifest["shapes"])


def _waited(command: Sequence[str]) -> int:
    """Run a command and return its exit code.

    An interrupt of this process is passed on to the command, which then has 60 s to end.
    """
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # A terminal sends Ctrl-C to the child too, but it does not pass on our SIGTERM.
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(timeout=60)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()
            raise
    except BaseException:
        process.kill()
        process.wait()
        raise


def _ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _some(items: Sequence[str], shown: int = 3) -> str:
    more = f" and {len(items) - shown} more" if len(items) > shown else ""
    return f"{', '.join(items[:shown])}{more}"
