"""Recurrent cells over time: kernels and calls that compute all steps of an RNN, GRU or LSTM."""
