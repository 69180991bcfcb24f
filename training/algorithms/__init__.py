"""Objectives, training loops (RFT, value pretraining, PPO) and their metrics."""
