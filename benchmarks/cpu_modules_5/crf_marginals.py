"""Marginal probabilities of a linear-chain CRF by the forward and backward algorithms."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emit = nn.Linear(64, 11)
        self.transitions = nn.Parameter(torch.randn(11, 11) * 0.5)
        self.first = nn.Parameter(torch.randn(11) * 0.5)
        self.last = nn.Parameter(torch.randn(11) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        emissions = self.emit(x)
        steps = x.shape[1]
        alpha = self.first + emissions[:, 0]
        alphas = [alpha]
        for t in range(1, steps):
            paths = alpha[:, :, None] + self.transitions
            alpha = torch.logsumexp(paths, dim=1) + emissions[:, t]
            alphas.append(alpha)
        beta = self.last.expand_as(alpha)
        betas = [beta]
        for t in range(steps - 1, 0, -1):
            paths = self.transitions + (emissions[:, t] + beta)[:, None, :]
            beta = torch.logsumexp(paths, dim=2)
            betas.append(beta)
        total = torch.stack(alphas, 1) + torch.stack(betas[::-1], 1)
        return total.log_softmax(-1).exp()


def get_inputs() -> list[Tensor]:
    return [torch.randn(16, 24, 64)]


def get_init_inputs() -> list[object]:
    return []
