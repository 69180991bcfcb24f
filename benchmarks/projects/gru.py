"""Score sequences with a decoder of two GRU layers."""

import torch
from common import finished, optimized, options
from torch import Tensor, nn


class Decoder(nn.Module):
    def __init__(self, words: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.rnn = nn.GRU(dim, dim, num_layers=2, batch_first=True)
        self.out = nn.Linear(dim, words)

    def forward(self, tokens: Tensor) -> Tensor:
        y, _ = self.rnn(self.embed(tokens))
        return torch.log_softmax(self.out(y), -1)


def main() -> None:
    given = options(steps=8)
    dim = 512 if given.device == "cuda" else 128
    model = optimized(Decoder(1000, dim).eval().to(given.device), given)
    tokens = torch.randint(1000, (given.batches, 8, 64), device=given.device)

    @torch.inference_mode()
    def step(number: int) -> Tensor:
        return model(tokens[number])

    finished(step, given)


if __name__ == "__main__":
    main()
