"""Verdicts for many episodes: processes of this machine, Ray actors, clients."""
