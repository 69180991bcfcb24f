"""An attempt as files that guard it: the kernel for the verified calls, the original for the rest.

`model_new.py` is what users import. It stands beside the folder `model_new_verified`, which holds
the attempt as it was verified, the guard (`guard.py`) and what it compares a call with. No code of
the task or of the attempt runs here.
"""

from __future__ import annotations

import json
from pathlib import Path

from cuagent.attempt import ENTRY, MODULE, Attempt
from cuagent.package.folder import ExportError
from cuagent.task import Task
from cuagent.task.imports import imported_digest, imported_texts, package_of
from cuagent.verify.domain import Domain

FOLDER = "model_new_verified"
FACTS = "verified.json"
TRAVELS = ("guard.py", "forms.py")
"""Our files that go along; they import nothing of cuagent."""


def guarded_files(
    attempt: Attempt, task: Task, domain: Domain | None, reference: str
) -> dict[str, str]:
    """Path and text of each file; `reference` is the path of the original module's file.

    Raises ExportError where the record does not say which calls were verified.
    """
    if domain is None:
        raise ExportError(
            "the record does not say which calls this kernel was verified for (it is of an earlier "
            "version of cuagent); judge it again with cuagent optimize --resume or cuagent verify"
        )
    inside = {
        "__init__.py": f'"""{ENTRY} as it was verified; {MODULE} above decides when it runs."""\n',
        **{name: Path(__file__).with_name(name).read_text(encoding="utf-8") for name in TRAVELS},
        FACTS: json.dumps(facts(task, domain), indent=1) + "\n",
        **dict(attempt.files),
        **_imports(task),
    }
    files = {f"{FOLDER}/{name}": text for name, text in inside.items()}
    return {MODULE: entry_text(task, reference), reference: task.source} | files


def facts(task: Task, domain: Domain) -> dict[str, object]:
    """The content of `verified.json`, which `guard.py` reads."""
    return {
        "entry": task.entry,
        "package": package_of(task.path)[1],
        "device": domain.device,
        "names": domain.names,
        "nesting": json.loads(domain.nesting),
        "tensors": [
            {"dtype": form.dtype, "shape": form.shape, "stride": form.stride}
            for form in domain.tensors
        ],
        "init": json.loads(domain.init),
    }


def entry_text(task: Task, reference: str) -> str:
    """The `model_new.py` that users import."""
    return f'''"""{task.entry} of {task.path.name} with verified kernels. Written by cuagent.

The kernel runs for the calls that are named in {FOLDER}/{FACTS}, in eval mode and without
gradients. For every other call the original module runs, with the same parameters, and a
RuntimeWarning says why.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

if __package__:
    from .{FOLDER} import guard
else:  # by path, without a package around it
    sys.path += [path for path in (str(HERE),) if path not in sys.path]
    from {FOLDER} import guard

if Path(guard.__file__).resolve().parent.parent != HERE:
    raise ImportError(f"{{guard.__file__}} is of another kernel: import each as part of a package")


class {ENTRY}(guard.Guarded):
    """Same constructor, forward and state_dict as {task.entry}."""

    folder = HERE / "{FOLDER}"
    reference = HERE / "{reference}"
'''


def _imports(task: Task) -> dict[str, str]:
    """The files beside the user's that the original imports, as long as they are as judged."""
    if not task.imported or imported_digest(task.path) != task.imported:
        return {}
    return {f"imports/{name}": text for name, text in imported_texts(task.path).items()}
