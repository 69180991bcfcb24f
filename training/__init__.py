"""From run logs to a better policy: samples, rejection fine-tuning, value pretraining, PPO.

    segments.py   what was sampled: append-only token segments, episodes, their JSONL
    data.py       run logs to episodes, the RFT filters, the split, exports
    batch.py      episodes to padded tensors
    advantage.py  GAE over action tokens
    losses.py     the objectives and their statistics
    monitor.py    is the run collapsing?
    model.py      actor, critic, tokenizer and chat template, checkpoints
    rft.py, value.py, ppo.py   the three stages, each one loop that reads top to bottom
    engine.py, rollout.py      episodes through the agent's own loop and tools
    config.py, cli.py, demo.py what a person touches

Modules that compute import torch at their top; `cli.py` imports them only when a command runs.
Needs the extra `cuagent[train]` for everything that touches a transformers model.
"""
