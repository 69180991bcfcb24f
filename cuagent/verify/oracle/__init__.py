"""The oracle: the trusted process that computes the right answers, and its client."""
