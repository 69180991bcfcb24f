"""The lax rule and the strict rule: pure functions on tensors."""
