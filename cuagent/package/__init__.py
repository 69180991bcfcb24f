"""Results of a run as a package of their own, usable where cuagent is not installed."""

from cuagent.package.export import Figures, export
from cuagent.package.folder import ExportError
from cuagent.package.rung import export_rung

__all__ = ["ExportError", "Figures", "export", "export_rung"]
