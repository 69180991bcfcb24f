"""Build the opening messages of a run: the system prompt, the skill, the task.

Invariant: their text does not change during a run (no clock, no counter, no best attempt), so that
a provider's prompt cache stays valid.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cuagent.message import Message
from cuagent.task.step import Step

if TYPE_CHECKING:
    from cuagent.task import Task
    from cuagent.task.task import Device

ADMITTED = {
    "match": "torch's settings of the user's process; the reference's own error bounds yours",
    "fp32": "IEEE fp32 in the reference, in all baselines and in your kernel",
    "tf32": "TF32 is also admitted",
    "bf16": "bfloat16 and TF32 are also admitted",
    "fp16": "float16 and TF32 are also admitted",
}
"""Explanation of each precision setting in the prompt."""
LONGEST_RULES = 32 << 10
"""Largest total size in bytes of the AGENTS.md files in the prompt."""
LONGEST_SOURCE = 24_000
"""Largest number of characters of the reference's source in the prompt; a longer one is cut."""


def opening(task: Task, project: Path | None = None) -> list[Message]:
    """Return the two opening messages of every run, including the AGENTS.md of `project`."""
    parts = [_text("cuagent.agent", "system.md"), skill(task.device)]
    if project is not None and (rules := project_rules(project)):
        parts.append(f"# Rules of the user's project (AGENTS.md)\n\n{rules}")
    return [Message("system", "\n\n".join(filter(None, parts))), Message("user", _assignment(task))]


def project_rules(folder: Path) -> str:
    """Join the AGENTS.md files from the repository's root down to `folder`, the nearest last.

    If they exceed `LONGEST_RULES` together, those farthest from `folder` are omitted. A link out of
    the repository, or to a file other than Markdown, is skipped: its target would be sent to the
    model's provider, and `.env` or `.git/config` may contain keys.
    """
    found: list[str] = []
    room = LONGEST_RULES
    places = list(_upward(folder.resolve()))
    for place in places:
        path = (place / "AGENTS.md").resolve()
        if not (path.is_file() and path.is_relative_to(places[-1]) and path.suffix == ".md"):
            continue
        try:
            with path.open("rb") as file:
                raw = file.read(room)
        except OSError:
            continue
        if text := raw.decode("utf-8", "ignore").strip():
            found.append(text)
            room -= len(raw)
        if room <= 0:
            break
    return "\n\n".join(reversed(found))


def _upward(folder: Path) -> Iterator[Path]:
    """Yield `folder` and its parents up to the repository's root; only `folder` outside a
    repository.
    """
    above = [folder, *folder.parents]
    root = next((place for place in above if (place / ".git").exists()), folder)
    yield from above[: above.index(root) + 1]


def skill(device: Device | None = None) -> str:
    """Return the body of skills/SKILL.md, without its front matter.

    Parts between `<!-- cuda -->` and `<!-- /cuda -->` (or the same for `cpu`) are for that device
    only. With `device`, the parts for the other device are omitted; None keeps all.
    """
    text = _text("cuagent.skills", "SKILL.md")
    if text.startswith("---\n"):
        text = text.partition("\n---\n")[2]
    if device is not None:
        for name, part in re.findall(r"(?s)<!-- (cuda|cpu) -->\n(.*?)<!-- /\1 -->\n", text):
            whole = f"<!-- {name} -->\n{part}<!-- /{name} -->\n"
            text = text.replace(whole, part if name == device else "")
    return text.strip()


def skill_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _text(package: str, name: str) -> str:
    return importlib.resources.files(package).joinpath(name).read_text(encoding="utf-8").strip()


def _assignment(task: Task) -> str:
    source = task.source
    if len(source) > LONGEST_SOURCE:
        source = source[:LONGEST_SOURCE] + "\n# ... the rest is in reference.py\n"
    given = [
        f"Class to make faster: `{task.entry}` (reference.py)",
        f"Device: {task.device}",
        f"Machine: {_machine(task.device == 'cuda')}",
        f"Precision: {task.precision} ({ADMITTED[task.precision]})",
    ]
    if (step := Step.of(task)) is not None:
        given.append(_training(step))
    if task.init is not None:
        given.append(f"Constructor arguments: {task.init}")
    if task.inputs is not None:
        given.append(f"Inputs: {task.inputs}")
    facts = "\n".join(f"- {line}" for line in given)
    return (
        f"Make this PyTorch module faster.\n\n{facts}\n\n"
        f"reference.py:\n\n```python\n{source.rstrip()}\n```\n"
    )


def _training(step: Step) -> str:
    """Return the line of the prompt on a training step: what `ModelNew` must compute."""
    wanted = [f"input tensor {k}" for k in step.inputs] + [f"`{n}`" for n in step.parameters]
    return (
        f"Training step: write `ModelNew` with the constructor of `{step.entry}`, its `forward` of "
        f"{step.arguments} arguments, and `backward(*arguments, *cotangents)`, which returns a "
        f"tuple with the gradients of {', '.join(wanted)}. Both are judged and timed together."
    )


def _machine(cuda: bool) -> str:
    if cuda and (smi := shutil.which("nvidia-smi")):
        query = [smi, "--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader"]
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
        if found.returncode == 0 and found.stdout.strip():
            name, capability, memory = found.stdout.splitlines()[0].split(", ")
            return f"{name}, compute capability {capability}, {memory}"
    return f"{_processor()}, {os.cpu_count()} cores"


def _processor() -> str:
    """Return the CPU's name and its widest vector extension, for example "... avx512f"."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in text.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    flags = fields.get("flags", "").split()
    vectors = next((v for v in ("avx512f", "avx2") if v in flags), "")
    return " ".join(filter(None, [fields.get("model name") or platform.machine(), vectors]))
