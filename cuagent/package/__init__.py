"""Export the result of a run as a package that works without cuagent."""

from cuagent.package.export import export
from cuagent.package.figures import Figures
from cuagent.package.folder import ExportError
from cuagent.package.guarded import Captured
from cuagent.package.hub import hub_repository
from cuagent.package.rung import export_rung

__all__ = ["Captured", "ExportError", "Figures", "export", "export_rung", "hub_repository"]
