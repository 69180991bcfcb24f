"""The loss of a linear-chain CRF with masked steps."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start, self.end = (nn.Parameter(torch.randn(12) * 0.1) for _ in range(2))
        self.transitions = nn.Parameter(torch.randn(12, 12) * 0.1)

    def gold(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        score = self.start[tags[:, 0]] + emissions[:, 0].gather(1, tags[:, :1]).squeeze(1)
        moves = self.transitions[tags[:, :-1], tags[:, 1:]]
        found = emissions[:, 1:].gather(2, tags[:, 1:, None]).squeeze(2)
        score = score + ((moves + found) * mask[:, 1:]).sum(1)
        last = mask.sum(1).long() - 1
        return score + self.end[tags.gather(1, last[:, None]).squeeze(1)]

    def forward(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        steps = torch.arange(emissions.shape[1], device=emissions.device)
        mask = steps[None, :] < lengths[:, None]
        alpha = self.start + emissions[:, 0]
        for t in range(1, emissions.shape[1]):
            scores = alpha.unsqueeze(2) + self.transitions + emissions[:, t].unsqueeze(1)
            alpha = torch.where(mask[:, t : t + 1], torch.logsumexp(scores, dim=1), alpha)
        total = torch.logsumexp(alpha + self.end, dim=1)
        return (total - self.gold(emissions, tags, mask.to(emissions.dtype))).mean()


def get_inputs() -> list[Tensor]:
    return [torch.randn(16, 32, 12), torch.randint(0, 12, (16, 32)), torch.randint(8, 33, (16,))]


def get_init_inputs() -> list[object]:
    return []
