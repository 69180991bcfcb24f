"""Loss of a language model over Llama 3's vocabulary from bf16 logits, with ignored labels."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS, VOCABULARY = 2048, 128256


class Model(nn.Module):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits = logits[:, :-1].float()
        labels = labels[:, 1:]
        return F.cross_entropy(
            logits.reshape(-1, VOCABULARY), labels.reshape(-1), ignore_index=-100
        )


def get_inputs() -> list[Tensor]:
    labels = torch.randint(0, VOCABULARY, (1, TOKENS))
    labels[:, : TOKENS // 8] = -100
    return [torch.randn(1, TOKENS, VOCABULARY).bfloat16(), labels]


def get_init_inputs() -> list[object]:
    return []
