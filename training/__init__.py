"""Train a policy from run logs: samples, rejection fine-tuning, value pretraining, PPO.

    segments.py   append-only token segments, episodes and their JSONL
    chat.py       messages to token ids and back, by the model's chat template
    windows.py    context windows of a run log; data.py: run logs to episodes, the held-out split
    filters.py    the episodes that RFT imitates; export.py: formats of other trainers
    batch.py      episodes to padded tensors
    advantage.py  GAE over action tokens
    losses.py     the objectives; metrics.py, report.py: their statistics and curves
    monitor.py    alarms of a collapsing run
    model.py      actor and critic; lora.py: adapters; placement.py: replicas or shards
    optimize.py   the shared update; parallel.py: several processes; checkpoint.py: resuming
    reward.py     the reward that a learner sees; tensorboard.py: metrics for TensorBoard
    rft.py, value.py, ppo.py   the three training loops
    engine.py     token ids to sampled ids; rollout.py: episodes through the agent's loop and tools
    pool.py       verdicts for many episodes; judge_process.py: one judging process
    ray_pool.py   judges on several machines; pool_server.py: one pool shared by processes
    collect.py    episodes of a policy; curriculum.py: the choice of tasks; throttle.py: progress
    verl_*.py     export to verl, its agent loop and its GAE; doctor.py: check of the installation
    stages.py, config.py, cli.py   commands and settings; manifest.py: the settings of a folder
    gym.py, teacher.py, presets.py, demo.py   the demonstration: a small policy learns from scratch
    trial.py      several seeds of it; paired.py: their statistics
    audit.py      final kernels judged again; ablation.py: arms with one part left out

Modules that compute import torch at their top; `cli.py` imports them only when a command runs.
Everything that uses a transformers model needs the extra `cuagent[train]`.
"""
