"""The oracle: the trusted process that knows the right answers, and its client."""
