"""From run logs to a better policy: samples, rejection fine-tuning, value pretraining, PPO."""
