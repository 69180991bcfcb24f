"""Report the speedup of the user's script: captured shapes, the module's share, measured time."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.cli.exits import print_stderr

if TYPE_CHECKING:
    from cuagent.agent import Run
    from cuagent.capture.shapes import ShapesResult
    from cuagent.config import Settings
    from cuagent.package import Captured
    from cuagent.task import Task

RESULT = "script.json"
"""Name of the file in the run's folder with the results for the script."""
LARGEST = 64 << 20
"""Largest number of bytes of that file."""


def report_on_script(run: Run, settings: Settings, *, time_script: bool) -> None:
    """Judge the result of a captured task on all its shapes; print and store the figures.

    Does nothing for a task that was not captured. With `time_script` the script is timed too.
    """
    from cuagent.capture.run import calls_with_gradients
    from cuagent.capture.shapes import judge_shapes, lines, manifest_of
    from cuagent.events import Phase
    from cuagent.record import write_file
    from cuagent.record.origin import with_mac
    from cuagent.ui.terminal import Terminal

    result = run.result
    manifest = manifest_of(run.task)
    if result is None or manifest is None:
        return
    with Terminal(sys.stderr) as show:
        show(Phase("judging the recorded shapes"))
        found = judge_shapes(run.task, result.attempt, result.judgement, settings.isolation, show)
    assert found is not None
    kept = found.to_json() | {"attempt": result.n, "digest": result.attempt.digest}
    kept["captured"] = _facts(manifest)
    text = lines(found)
    wanted = calls_with_gradients(manifest)
    if wanted and not run.task.step:
        text.append(
            f"{wanted} of {manifest['calls']} calls of the script want gradients; there a package "
            "runs your module, so training becomes no faster: use --backward"
        )
    if time_script:
        from cuagent.capture.swap import SwapRefused, time_swapped

        try:
            if not any(shape.covered for shape in found.shapes):
                raise SwapRefused("the kernel is used for none of its shapes")
            captured = _captured(_facts(manifest), found)
            timed = time_swapped(run.task, manifest, result.attempt, result.judgement, captured)
            kept["timed"] = timed.to_json()
            text += timed.lines()
        except SwapRefused as error:
            text.append(f"the script was not timed: {error}")
    for line in text:
        print_stderr(line)
    write_file(run.folder.path, RESULT, (dumps(with_mac(kept), indent=1) + "\n").encode())


def require_trusted_script(task: Task, trust: bool) -> None:
    """Ask the user before the script that a captured folder names is timed, unless `trust`.

    Folders that this user captured on this machine need no question. Raises Refused if the user
    does not agree or cannot be asked.
    """
    from cuagent.capture.shapes import manifest_of
    from cuagent.cli.trust import require_agreement
    from cuagent.record.origin import has_valid_mac

    manifest = manifest_of(task)
    if manifest is None or has_valid_mac(manifest):
        return
    script = manifest.get("script")
    command = shlex.join(map(str, [script, *_list(manifest.get("arguments"))]))
    require_agreement(
        f"{task.path.parent}: unknown origin: you did not capture it on this machine (it came with "
        f"a repository, was copied or changed, or is of an older version). --time-script would run "
        f"{command} four times with your rights",
        "read that script",
        trust,
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def script_results(folder: Path) -> dict[str, Any]:
    """Return the content of `script.json` in a run's folder; {} if there is none.

    No link is followed.
    """
    from cuagent.record import RecordError, read_file

    with suppress(OSError, ValueError, RecursionError, RecordError):
        found = loads(read_file(folder, RESULT, LARGEST))
        if isinstance(found, dict):
            return found
    return {}


def captured_of(task: Task, folder: Path, digest: str) -> Captured | None:
    """Return the facts about a captured task that an export includes; None if the task was not
    captured.

    They include those further shapes for which the attempt `digest` was accepted. `folder` is the
    run's folder. Results that this user did not get on this machine are ignored: they could claim
    shapes that were never judged.
    """
    from cuagent.capture.shapes import manifest_of
    from cuagent.package import Captured
    from cuagent.record.origin import has_valid_mac
    from cuagent.record.revive import revive
    from cuagent.task.load import FOLDER_FILE
    from cuagent.verify.domain import Domain

    kept = script_results(folder)
    kept = kept if has_valid_mac(kept) else {}
    facts = kept.get("captured")
    if facts is None:
        manifest = manifest_of(task)
        if manifest is None or "call" not in manifest:
            return None
        facts = _facts(manifest)
    also = [
        shape["domain"]
        for shape in (kept.get("shapes", ()) if kept.get("digest") == digest else ())
        if shape["covered"] and shape.get("domain") and shape["task"] != FOLDER_FILE
    ]
    domains = tuple(revive(Domain, domain) for domain in also)
    return Captured(facts["module"], facts["kind"], facts["call"], facts["autocast"], domains)


def _captured(facts: dict[str, Any], found: ShapesResult) -> Captured:
    """Return the facts on a captured module, with the shapes that were accepted besides the
    task's."""
    from cuagent.package import Captured
    from cuagent.task.load import FOLDER_FILE

    domains = tuple(
        shape.domain
        for shape in found.shapes
        if shape.domain is not None and shape.task != FOLDER_FILE
    )
    return Captured(facts["module"], facts["kind"], facts["call"], facts["autocast"], domains)


def _facts(manifest: dict[str, Any]) -> dict[str, Any]:
    return {
        "module": manifest["module"],
        "kind": manifest["class"].rpartition(".")[2],
        "call": manifest.get("call"),
        "autocast": manifest.get("autocast"),
    }
