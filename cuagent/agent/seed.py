"""Start a run from the user's own kernel (`--seed-kernel`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cuagent.agent.hooks import Hook
from cuagent.agent.run import Run
from cuagent.agent.tools.candidate import figures, judged
from cuagent.agent.wording import judgement_lines
from cuagent.attempt import ENTRY, MODULE, Attempt, AttemptError, freeze
from cuagent.events import Notice, Phase
from cuagent.message import Message
from cuagent.models.model import Model
from cuagent.record import write_file
from cuagent.timing import Effort

BARE = (".cu", ".cuh", ".cpp", ".h", ".hpp")
"""Suffixes of a kernel source that the user passes without a module.

Such a kernel can be judged only after the model has written a module that calls it.
"""


@dataclass(frozen=True)
class Seed:
    """The user's kernel: (path, text) of its files for the work folder, and the attempt that they
    form.

    `attempt` is None if the files lack a module.
    """

    files: tuple[tuple[str, str], ...]
    attempt: Attempt | None


def read_seed(path: Path) -> Seed:
    """Read the user's kernel: a candidate (folder or file with ModelNew) or a single source file.

    Raises AttemptError.
    """
    if path.is_file() and path.suffix in BARE:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise AttemptError(f"{path}: cannot be read ({error})") from error
        return Seed(((f"kernels/{path.name}", text),), None)
    attempt = freeze(path)
    return Seed(attempt.files, attempt)


def start_from(seed: Seed) -> Hook:
    """Return a hook that, before the first step, writes the user's kernel to the work folder.

    The hook also judges the kernel and adds the result to the conversation.
    """

    def hook(run: Run, model: Model) -> None:
        if run.tried or any(m.data.get("from") == "seed" for m in run.messages):
            return
        for name, text in seed.files:
            write_file(run.work, name, text.encode("utf-8"))
        names = ", ".join(name for name, _ in seed.files)
        lines = [f"The user's own kernel is in the work folder: {names}. Start from it."]
        if seed.attempt is None:
            lines.append(f"It has no {MODULE} with {ENTRY} yet, so it was not judged.")
        else:
            run.emit(Phase("judging your kernel"))
            run.snapshot()
            tried = run.register(seed.attempt, judged(run, seed.attempt, Effort.QUICK))
            lines += judgement_lines(tried, best=tried.accepted)
            run.emit(Notice(f"your kernel is attempt {tried.n}: {figures(tried)['reason']}"))
        run.snapshot()
        run.add(Message("user", "\n".join(lines), data={"from": "seed"}))

    return hook
