"""Repeat recorded verdicts and compare the figures."""
