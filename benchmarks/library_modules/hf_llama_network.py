"""A Llama of four layers with logits over 1024 tokens in bf16, from transformers."""

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_attention_heads=16,
            num_key_value_heads=4,
            num_hidden_layers=4,
            vocab_size=32000,
            attn_implementation="sdpa",
            use_cache=False,
        )
        self.network = LlamaForCausalLM(config).to(torch.bfloat16).eval()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.network(tokens).logits


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, 32000, (1, 1024))]


def get_init_inputs() -> list[object]:
    return []
