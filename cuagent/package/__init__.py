"""Accepted attempts as a package of their own, usable where cuagent is not installed."""

from cuagent.package.export import ExportError, Figures, export

__all__ = ["ExportError", "Figures", "export"]
