"""Provide tokenizers whose chat templates have the text shapes of five model families.

The templates are written for these tests, with other words than the originals. They
share control tokens, the place of tool results, the form of calls and the treatment of reasoning.
"""

from __future__ import annotations

from typing import Any

CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOOL_TAGS = ["<tool_call>", "</tool_call>"]
THINK_TAGS = ["<tool_response>", "</tool_response>", "<think>", "</think>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]

DEEP = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
DEEP_CALLS = [
    *(f"<｜tool▁{name}▁{side}｜>" for name in ("calls", "call", "output", "outputs")
      for side in ("begin", "end")),
    "<｜tool▁sep｜>",
]  # fmt: skip

SYSTEM = """\
{%- set given = messages and messages[0].role == 'system' -%}
{%- if tools or given -%}
<|im_start|>system
{{ messages[0].content if given else 'An assistant.' }}
{%- if tools %}

Tools, as JSON lines:
{%- for t in tools %}
{{ t | tojson }}
{%- endfor %}
{%- endif -%}
<|im_end|>
{% endif -%}
"""
"""Part of a chat template: the system text, then the schemas of the tools."""
RESULT = """\
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}
<|im_start|>user
{%- endif %}{{ '\n<tool_response>' }}
{{ m.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}
<|im_end|>
{% endif -%}
"""
"""Part of a chat template: adjacent tool results are rendered in one turn of the user."""
ASK = "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
CALLS = """\
{%- for c in m.tool_calls or [] -%}
{%- if m.content or not loop.first %}
{% endif -%}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
"""
PLAIN = """\
{%- for m in messages -%}
{%- if m.role == 'system' -%}
{%- if not loop.first -%}<|im_start|>system
{{ m.content }}<|im_end|>
{% endif -%}
{%- elif m.role == 'user' -%}
<|im_start|>user
{{ m.content }}<|im_end|>
"""
QWEN25 = (
    SYSTEM
    + PLAIN
    + RESULT
    + "{%- else -%}<|im_start|>assistant\n{{ m.content }}"
    + CALLS
    + "<|im_end|>\n{% endif -%}{%- endfor -%}"
    + ASK
)
QWEN3 = (
    SYSTEM
    + """\
{%- set ns = namespace(asked=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
"""
    + PLAIN
    + RESULT
    + """\
{%- else -%}
<|im_start|>assistant
{% if loop.index0 > ns.asked and (loop.last or m.reasoning_content) -%}
<think>
{{ m.reasoning_content or '' }}
</think>

{% endif -%}
{{ m.content }}"""
    + CALLS
    + "<|im_end|>\n{% endif -%}{%- endfor -%}"
    + ASK
)
"""Chat template that renders reasoning only after the last question of a user, so that it rewrites
earlier turns."""
QWEN3_OPENED = QWEN3.replace(ASK, ASK.replace("assistant\n", "assistant\n<think>\n"))
"""Chat template whose prompt begins the reasoning, as for models that always reason."""
CODER = (
    SYSTEM
    + PLAIN
    + RESULT
    + """\
{%- else -%}
<|im_start|>assistant
{{ m.content | trim }}
{%- for c in m.tool_calls or [] %}
{% if m.content or not loop.first %}
{% endif -%}
<tool_call>
<function={{ c.function.name }}>
{%- for key, value in c.function.arguments.items() %}
<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{%- endfor %}
</function>
</tool_call>
{%- endfor -%}
<|im_end|>
{% endif -%}{%- endfor -%}"""
    + ASK
)
LLAMA3 = """\
<|begin_of_text|>
{%- for m in messages -%}
<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>

{% if m.tool_calls -%}
{%- if m.tool_calls | length > 1 -%}{{ raise_exception('one call a turn') }}{%- endif -%}
{%- set call = m.tool_calls[0].function -%}
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
{%- elif m.role == 'tool' -%}
{{ m.content | tojson }}
{%- else -%}
{%- if tools and loop.first -%}
Answer with one JSON call of these tools.
{% for t in tools %}{{ t | tojson }}
{% endfor %}
{%- endif -%}
{{ m.content | trim }}
{%- endif -%}
<|eot_id|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|start_header_id|>assistant<|end_header_id|>

{% endif -%}"""

DEEPSEEK_V3 = """\
<｜begin▁of▁sentence｜>
{%- for m in messages if m.role == 'system' -%}{{ m.content }}{%- endfor -%}
{%- for t in tools or [] %}
{{ t | tojson }}
{%- endfor -%}
{%- for m in messages -%}
{%- set before = messages[loop.index0 - 1].role if not loop.first else '' -%}
{%- if m.role == 'user' -%}
<｜User｜>{{ m.content }}
{%- elif m.role == 'tool' -%}
{%- if before != 'tool' -%}<｜tool▁outputs▁begin｜>{%- endif -%}
<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}
<｜tool▁outputs▁end｜>
{%- endif -%}
{%- elif m.role == 'assistant' -%}
{%- if before != 'tool' -%}<｜Assistant｜>{%- endif -%}
{{ m.content or '' }}
{%- for c in m.tool_calls or [] -%}
{%- if loop.first -%}<｜tool▁calls▁begin｜>{%- else %}
{% endif -%}
{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + c.function.name + '\\n```json\\n'
   + c.function.arguments + '\\n```<｜tool▁call▁end｜>' }}
{%- if loop.last -%}<｜tool▁calls▁end｜>{%- endif -%}
{%- endfor -%}
<｜end▁of▁sentence｜>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' -%}<｜Assistant｜>{%- endif -%}
"""
"""Chat template in which the policy continues directly after the results of tools, without another
header."""
DEEPSEEK_V31 = (
    DEEPSEEK_V3.replace("<｜Assistant｜>", "<｜Assistant｜></think>")
    .replace("{%- if before != 'tool' -%}<｜tool▁outputs▁begin｜>{%- endif -%}\n", "")
    .replace("function<｜tool▁sep｜>' + c.function.name + '\\n```json\\n'",
             "' + c.function.name + '<｜tool▁sep｜>'")
    .replace("'\\n```<｜tool▁call▁end｜>'", "'<｜tool▁call▁end｜>'")
    .replace("<｜tool▁outputs▁end｜>", "")
)  # fmt: skip
"""Chat template without reasoning: the prompt ends the reasoning. A tool call is a name and
arguments."""

FAMILIES: dict[str, tuple[str, list[str], str]] = {
    "qwen2.5": (QWEN25, CHATML + TOOL_TAGS, "<|im_end|>"),
    "qwen3": (QWEN3, CHATML + TOOL_TAGS + THINK_TAGS, "<|im_end|>"),
    "qwen3-opened": (QWEN3_OPENED, CHATML + TOOL_TAGS + THINK_TAGS, "<|im_end|>"),
    "qwen3-coder": (CODER, CHATML + TOOL_TAGS + THINK_TAGS, "<|im_end|>"),
    "llama3": (LLAMA3, HEADERS, "<|eot_id|>"),
    "deepseek-v3": (DEEPSEEK_V3, DEEP + DEEP_CALLS, "<｜end▁of▁sentence｜>"),
    "deepseek-v3.1": (DEEPSEEK_V31, DEEP + DEEP_CALLS + ["</think>"], "<｜end▁of▁sentence｜>"),
}


def tokenizer_of(family: str) -> Any:
    """Return a byte-level tokenizer with the control tokens and the chat template of a model
    family."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    template, controls, end = FAMILIES[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=controls, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([template] * 3, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=controls[0],
        additional_special_tokens=controls[1:],
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
