"""Training objectives, training loops (RFT, value pretraining, PPO) and metrics of the batches."""
