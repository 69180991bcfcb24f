"""One step of a beam search: scores with repetition penalty, the best hypotheses, their states."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beams = 4

    def forward(
        self, logits: Tensor, scores: Tensor, tokens: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        vocabulary = logits.shape[2]
        seen = logits.gather(2, tokens)
        seen = torch.where(seen < 0, seen * 1.2, seen / 1.2)
        logits = logits.scatter(2, tokens, seen)
        total = scores[:, :, None] + logits.log_softmax(-1)
        best, index = (total / 7.0**0.6).flatten(1).topk(self.beams)
        beam = index // vocabulary
        word = index % vocabulary
        kept = tokens.gather(1, beam[:, :, None].expand_as(tokens))
        moved = state.gather(1, beam[:, :, None].expand_as(state))
        return best * 7.0**0.6, word, torch.cat((kept, word[:, :, None]), dim=2), moved


def get_inputs() -> list[Tensor]:
    tokens = torch.stack([torch.randperm(4000)[:6] for _ in range(16)]).view(4, 4, 6)
    return [torch.randn(4, 4, 4000), -torch.rand(4, 4) * 5, tokens, torch.randn(4, 4, 256)]


def get_init_inputs() -> list[object]:
    return []
