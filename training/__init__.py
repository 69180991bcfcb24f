"""From run logs to a better policy: samples, rejection fine-tuning, value pretraining, PPO.

    segments.py   what was sampled: append-only token segments, episodes, their JSONL
    chat.py       messages to token ids and back, by the target's chat template
    data.py       run logs to episodes, the held-out split; filters.py, export.py
    batch.py      episodes to padded tensors
    advantage.py  GAE over action tokens
    losses.py     the objectives; metrics.py, report.py: their statistics and curves
    monitor.py    is the run collapsing?
    model.py      actor and critic; optimize.py, checkpoint.py, parallel.py
    rft.py, value.py, ppo.py   the three stages, each one loop that reads top to bottom
    engine.py     ids to sampled ids; rollout.py: episodes through the agent's own loop and tools
    pool.py       verdicts for many episodes; collect.py, curriculum.py: which tasks are played
    stages.py, config.py, cli.py   what a person touches
    gym.py, demo.py   a small policy learns from nothing

Modules that compute import torch at their top; `cli.py` imports them only when a command runs.
Needs the extra `cuagent[train]` for everything that touches a transformers model.
"""
