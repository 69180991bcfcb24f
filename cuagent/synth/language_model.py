"""Let a language model compose candidate tasks from randomly chosen operators.

The model receives the operators and the required form of a task. Its file undergoes the same checks
as all other candidates. A reply is written to OUT/composed/ before it is examined, so a resumed run
reuses it.
"""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

from cuagent.models import Model
from cuagent.models.model import Message
from cuagent.synth.candidate import Candidate
from cuagent.synth.catalogue import catalogue
from cuagent.synth.compose import DTYPES, Grammar
from cuagent.synth.source import labels, parse

FOLDER = "composed"
FENCE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)
INSTRUCTIONS = """\
You write small PyTorch tasks for people who write CUDA kernels. Reply with one Python file in a
fenced block and nothing else:
- `import torch`, `import torch.nn as nn`, `import torch.nn.functional as F`;
- a constant `BATCH = 8` that is the first size of the inputs, so that it can be changed;
- `class Model(nn.Module)` with `__init__(self)` and `forward`;
- `get_inputs()` with a list of random tensors, at most 100000 elements each at a batch of 8;
- `get_init_inputs()` with an empty list.
forward is deterministic, uses every input, parameter and result, and has no branch on values.
Use functions of torch, F and nn with their full names, not methods of tensors.
"""


class ModelComposer:
    """Callable that composes the candidate task of an index by one query to a language model."""

    def __init__(self, model: Model, seed: int, grammar: Grammar, out: Path) -> None:
        self.model = model
        self.seed = seed
        self.grammar = grammar
        self.folder = out / FOLDER

    def __call__(self, index: int) -> Candidate | None:
        """Return the candidate task of an index; None if the model's reply contains no task. Raises
        ModelError."""
        path = self.folder / f"{index:06}.json"
        if path.exists():
            reply = json.loads(path.read_text(encoding="utf-8"))["reply"]
        else:
            reply = self._ask(index)
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps({"reply": reply}), encoding="utf-8")
            partial.replace(path)
        families, _, dtype = self.recipe(index)
        return parsed_reply(reply, index, families, dtype)

    def recipe(self, index: int) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """Return (families, operators, dtype) that the model is asked to use for the candidate of
        an index."""
        draw = random.Random(f"{self.seed}/{index}/model")
        count = draw.choices(list(self.grammar.counts), list(self.grammar.counts.values()))[0]
        weights = {f: w for f, w in self.grammar.families.items() if catalogue().get(f)}
        families = tuple(draw.choices(list(weights), list(weights.values()), k=count))
        operators = tuple(draw.choice(catalogue()[family]).name for family in families)
        return families, operators, draw.choices(list(DTYPES), list(DTYPES.values()))[0]

    def _ask(self, index: int) -> str:
        _, operators, dtype = self.recipe(index)
        wanted = (
            f"Combine these operators, each once: {', '.join(operators)}. "
            f"Floating-point tensors are {dtype}."
        )
        messages = [Message("system", INSTRUCTIONS), Message("user", wanted)]
        return self.model.query(messages, [], lambda text, kind: None).message.content


def parsed_reply(reply: str, index: int, families: tuple[str, ...], dtype: str) -> Candidate | None:
    """Return the candidate task in a model's reply, with labels read from its code; None if the
    reply contains no task."""
    found = FENCE.search(reply)
    code = found[1] if found else reply
    try:
        ops = labels(parse(code))
    except ValueError:
        return None
    return Candidate(index, code, tuple(ops), families, dtype) if ops else None
