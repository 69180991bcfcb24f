"""Compose candidate tasks from blocks of the libraries transformers and timm, with small
configurations.

The blocks of transformers are found in the source text of the installed modelling files: classes
that are constructed from a configuration or one size, and whose forward requires one argument only.
Nothing is imported here.
Not covered: blocks with masks, caches or positions as arguments.
"""

from __future__ import annotations

import ast
import importlib.util
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cuagent.synth.candidate import FIRST_BATCH, Candidate
from cuagent.synth.dimensions import Dimensions
from cuagent.synth.source import labels, parse

SIZES = "hidden_size={d}, intermediate_size={f}"
HEADS = "num_attention_heads=4"
NO_DROPOUT = "hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0"
MODELS = {
    "albert": ("AlbertConfig", f"{SIZES}, {HEADS}, {NO_DROPOUT}"),
    "bert": ("BertConfig", f"{SIZES}, {HEADS}, {NO_DROPOUT}"),
    "cohere": ("CohereConfig", SIZES),
    "electra": ("ElectraConfig", f"{SIZES}, {HEADS}, {NO_DROPOUT}"),
    "gemma": ("GemmaConfig", SIZES),
    "gemma2": ("Gemma2Config", SIZES),
    "glm": ("GlmConfig", SIZES),
    "gpt_neox": ("GPTNeoXConfig", f"{SIZES}, {HEADS}"),
    "granite": ("GraniteConfig", SIZES),
    "llama": ("LlamaConfig", SIZES),
    "mistral": ("MistralConfig", SIZES),
    "mixtral": ("MixtralConfig", SIZES),
    "nemotron": ("NemotronConfig", SIZES),
    "olmo": ("OlmoConfig", SIZES),
    "olmo2": ("Olmo2Config", SIZES),
    "phi": ("PhiConfig", f"{SIZES}, {HEADS}"),
    "phi3": ("Phi3Config", SIZES),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", SIZES),
    "roberta": ("RobertaConfig", f"{SIZES}, {HEADS}, {NO_DROPOUT}"),
    "starcoder2": ("Starcoder2Config", f"{SIZES}, residual_dropout=0.0"),
    "t5": ("T5Config", "d_model={d}, d_ff={f}, dropout_rate=0.0"),
    "vit": ("ViTConfig", f"{SIZES}, {HEADS}, {NO_DROPOUT}"),
}
"""Configuration class for each family of models in transformers, and the arguments that make the
model small."""
TIMM = (
    ("timm.layers", "Mlp({d}, {f})"),
    ("timm.layers", "GluMlp({d}, {f})"),
    ("timm.layers", "SwiGLU({d}, {f})"),
    ("timm.layers", "GlobalResponseNormMlp({d}, {f})"),
)
"""Blocks of the library timm: (module to import from, constructor)."""
OTHER_INPUTS = re.compile("Patch|Embedding|Router")
"""Pattern of the names of blocks that are left out, because their inputs are images or indices of
experts."""
ONE_SIZE = ("hidden_size", "dim", "normalized_shape")


@dataclass(frozen=True)
class Block:
    """A module class of a library from which a candidate task can be made."""

    library: str
    imports: str
    constructor: str
    """Constructor expression with {d} for the width and {f} for the inner width."""


@cache
def blocks() -> tuple[Block, ...]:
    """Return the usable blocks of the installed libraries, in a fixed order."""
    found: list[Block] = []
    texts: set[str] = set()
    if (transformers := importlib.util.find_spec("transformers")) and transformers.origin:
        for name, (config, sizes) in MODELS.items():
            file = Path(transformers.origin).parent / "models" / name / f"modeling_{name}.py"
            if file.is_file():
                found += _in_file(file, name, config, sizes, texts)
    if importlib.util.find_spec("timm"):
        for module, constructor in TIMM:
            cls = constructor.partition("(")[0]
            found.append(Block("timm", f"from {module} import {cls}", constructor))
    return tuple(found)


def _in_file(file: Path, name: str, config: str, sizes: str, texts: set[str]) -> Iterator[Block]:
    """Yield the blocks of a modelling file. Blocks whose text is in `texts` are skipped: another
    family of models has the same block."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef) or OTHER_INPUTS.search(node.name):
            continue
        methods = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef)}
        if not {"__init__", "forward"} <= set(methods) or len(_required(methods["forward"])) != 1:
            continue
        text = ast.unparse(node).replace(config.removesuffix("Config"), "")
        if text in texts:
            continue
        texts.add(text)
        imported = f"from transformers.models.{name}.modeling_{name} import {node.name}"
        match _required(methods["__init__"]):
            case ["config"]:
                yield Block(
                    "transformers",
                    f"from transformers import {config}\n{imported}",
                    f"{node.name}({config}({sizes}))",
                )
            case [only] if only in ONE_SIZE:
                yield Block("transformers", imported, f"{node.name}({{d}})")


def _required(method: ast.FunctionDef) -> list[str]:
    """Return the names of the method's parameters without a default, except self."""
    given = method.args.posonlyargs + method.args.args
    needed = given[1 : len(given) - len(method.args.defaults)]
    keywords = zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True)
    return [a.arg for a in needed] + [a.arg for a, default in keywords if default is None]


def block_candidate(draw: random.Random, index: int, dimensions: Dimensions) -> Candidate | None:
    """Return candidate task number `index`, made of one random block; None if no library with
    blocks is installed."""
    if not blocks():
        return None
    block = draw.choice(blocks())
    width = draw.choice(dimensions.block_widths)
    length = draw.choice(dimensions.block_lengths)
    constructor = block.constructor.replace("{d}", str(width)).replace("{f}", str(2 * width))
    code = (
        f"import torch\nimport torch.nn as nn\n{block.imports}\n\nBATCH = {FIRST_BATCH}\n\n\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.block = {constructor}\n\n"
        "    def forward(self, x):\n        return self.block(x)\n\n\n"
        "def get_inputs():\n    return [\n"
        f"        torch.randn(BATCH, {length}, {width}),\n    ]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    ops = tuple(labels(parse(code)))
    return Candidate(index, code, ops, ("blocks",), "float32", block.library)
