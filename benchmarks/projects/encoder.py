"""Serve an encoder of transformers in bfloat16."""

import torch
from common import finished, optimized, options
from torch import Tensor
from transformers import BertConfig, BertModel


def main() -> None:
    given = options(steps=8)
    big = given.device == "cuda"
    config = BertConfig(
        vocab_size=1000,
        hidden_size=768 if big else 256,
        num_hidden_layers=12 if big else 4,
        num_attention_heads=12 if big else 4,
        intermediate_size=3072 if big else 1024,
    )
    model = BertModel(config).eval().to(given.device, torch.bfloat16)
    optimized(model, given)
    ids = torch.randint(1000, (given.batches, 16 if big else 4, 128), device=given.device)

    @torch.inference_mode()
    def step(number: int) -> Tensor:
        return model(ids[number]).last_hidden_state

    finished(step, given)


if __name__ == "__main__":
    main()
