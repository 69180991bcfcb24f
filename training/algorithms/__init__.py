"""Objectives and loops: RFT, value pretraining, PPO, and what they measure."""
