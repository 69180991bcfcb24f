"""Run a user's script with the recorder installed: `python -P -m cuagent.capture.launch ORDER`.

ORDER is a JSON file with the script, its arguments, the module to record, and the path of the
answer file, which is written even if the script fails. `__main__`, sys.argv, sys.path and the
current folder are those of `python SCRIPT ARGS`. torch.compile is disabled in the script, because
compiled code does not call the modules.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

from cuagent.capture.recorder import Recorder, Stopped

JOINED_S = 1.0
"""Interrupts (Ctrl-C) within this many seconds are handled as one interrupt."""
INTERRUPTED = 130
"""Exit code if an interrupt arrives before the script begins; no answer is written then."""


def main(order_file: str) -> int:
    """Run the script as the order file says, write the answer file, and return the exit code of the
    script."""
    order = json.loads(Path(order_file).read_text())
    began = time.perf_counter()
    try:
        import torch
    except KeyboardInterrupt:  # before the script began: the parent says so
        return INTERRUPTED
    if "swap" in order:
        return _timed(order)
    recorder = Recorder(order["module"], order["calls"], order["quota"], order["stop"])
    recorder.install()
    compiled, processes = _without_compile(), _processes()
    started = time.perf_counter()
    pid = os.getpid()
    code, failure = _run(order["script"], order["arguments"])
    if os.getpid() != pid:  # a process that the script forked ended here
        return code
    elapsed = time.perf_counter() - started
    answer: dict[str, Any] = {
        "code": code,
        "failure": failure,
        "script_s": elapsed,
        "import_s": started - began,
        "window_s": recorder.window(),
        "steps": len(recorder.steps),
        "compiled": compiled,
        "problem": recorder.problem or _no_result(recorder),
        "under_capture": recorder.under_capture,
        "processes": len(processes),
    }
    with contextlib.suppress(Exception):
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    if recorder.target is None:
        answer["modules"] = _listed(recorder)
    elif recorder.snapshot is None or recorder.problem:
        recorder.names.refresh()
        answer["known"] = sorted(set(recorder.names.known()))
        answer["called"] = recorder.module
        answer["elsewhere"] = recorder.names.elsewhere
    else:
        answer |= _written(recorder, order, answer)
    temporary = Path(order["answer"] + ".part")
    temporary.write_text(json.dumps(answer))
    temporary.replace(order["answer"])
    return code


def _no_result(recorder: Recorder) -> str:
    return (
        "each of its calls raised an exception" if recorder.failed and not recorder.shapes else ""
    )


def _timed(order: dict[str, Any]) -> int:
    """Run the script and write its times to the answer file; run the kernel in place of the module
    if the order has one."""
    import torch

    from cuagent.capture.swapper import Swapper

    swapper = Swapper(order["module"], order["swap"])
    swapper.install()
    compiled = _without_compile()
    started = time.perf_counter()
    code, failure = _run(order["script"], order["arguments"])
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    answer = {
        "code": code,
        "failure": failure,
        "script_s": time.perf_counter() - started - swapper.spent - swapper.first_spent,
        "window_s": swapper.window(),
        "swapped": swapper.swapped,
        "target_calls": swapper.calls,
        "compiled": compiled,
        "problem": swapper.problem,
    }
    Path(order["answer"]).write_text(json.dumps(answer))
    return code


def _written(recorder: Recorder, order: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    from cuagent.capture.write import WriteError, write_capture

    kept = ("script_s", "code", "failure", "compiled")
    facts = {name: facts[name] for name in kept} | {
        "script": str(Path(order["script"]).absolute()),
        "arguments": order["arguments"],
        "cwd": order["cwd"],
    }
    try:
        tasks = write_capture(recorder, Path(order["out"]), order["script"], facts)
    except WriteError as error:
        return {"problem": str(error), "known": [], "called": recorder.module}
    except OSError as error:
        text = f"{order['out']}: cannot be written: {error.strerror or error}"
        return {"problem": text, "known": [], "called": recorder.module}
    return {"tasks": tasks}


def _listed(recorder: Recorder) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "class": entry.kind,
            "calls": entry.count,
            "seconds": recorder.seconds(entry),
            "shapes": sorted(entry.shapes.items(), key=lambda pair: -pair[1]),
        }
        for name, entry in recorder.timed.items()
    ]


def _run(script: str, arguments: list[str]) -> tuple[int, str]:
    """Run the script as `__main__`. Return (exit code, one line about its failure, or "")."""
    main_module = types.ModuleType("__main__")
    main_module.__file__ = str(Path(script).absolute())  # as Python does
    main_module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main_module
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    _join_interrupts()
    try:
        code = compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
        exec(code, main_module.__dict__)
    except Stopped:
        return 0, ""
    except SystemExit as end:
        return _exit_code(end)
    except KeyboardInterrupt:
        return 130, "interrupted"
    except BaseException as error:  # noqa: BLE001  process boundary: the script's own failure
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if f.filename == script]
        traceback.print_exception(type(error), error, _below(error))
        place = f"{script}:{own[-1].lineno}: " if own else ""
        text = " ".join(str(error).split())[:200]
        return 1, f"{place}{type(error).__name__}: {text}"
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the recorded data must still be written
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        gc.collect()
    return 0, ""


def _join_interrupts() -> None:
    """Install a SIGINT handler that handles interrupts within `JOINED_S` as one.

    On a terminal Ctrl-C arrives twice: from the terminal, and from the parent process.
    """
    last = -JOINED_S

    def interrupt(number: int, frame: object) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= JOINED_S:
            last = now
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def _below(error: BaseException) -> Any:
    """Return the error's traceback without the frame of this file."""
    trace = error.__traceback__
    return trace.tb_next if trace is not None and trace.tb_next is not None else trace


def _exit_code(end: SystemExit) -> tuple[int, str]:
    if end.code is None or end.code == 0:
        return 0, ""
    if isinstance(end.code, int):
        return end.code, f"it ended with exit code {end.code}"
    print(end.code, file=sys.stderr)
    return 1, f"it ended with: {end.code}"


def _without_compile() -> list[str]:
    """Replace torch.compile by a function that returns its argument.

    Returns a list to which the name of each module or function that the script compiles is added.
    """
    import torch

    seen: list[str] = []

    def same(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: same(function, **options)
        kind = type(model).__name__
        seen.append(
            kind if isinstance(model, torch.nn.Module) else getattr(model, "__name__", kind)
        )
        return model

    torch.compile = same
    return seen


def _processes() -> list[str]:
    """Return a list to which the name of each process is added that the script starts with
    `multiprocessing`."""
    from multiprocessing.process import BaseProcess

    seen: list[str] = []
    original = BaseProcess.start

    def start(self: BaseProcess) -> None:
        seen.append(self.name)
        original(self)

    BaseProcess.start = start  # type: ignore[method-assign]
    return seen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
