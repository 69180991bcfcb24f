"""`cuagent mcp`: the verifier as tools for other agents, over stdio."""

from __future__ import annotations

import shlex
import sys

from cuagent.cli.exits import Refused


def mcp() -> None:
    """Offer the verifier to other agents: an MCP server over stdio.

    Its tools: check, baseline, compile, verify, profile, export. For Claude Code:
    claude mcp add cuagent -- cuagent mcp
    """
    try:
        from cuagent.cli.mcp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise Refused(
            "the MCP server needs the package mcp 2, which is not installed here; run: "
            f"{shlex.quote(sys.executable)} -m pip install 'mcp>=2'"
        ) from None
    serve()
