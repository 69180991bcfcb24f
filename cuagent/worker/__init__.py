"""The processes that run models, and the narrow ways into and out of them.

`ForkServer` is the warm process; `Session` is one model running in a process forked from it, either an
untrusted candidate or a trusted reference; `Arena` is memory that the referee owns and lends to
them. See docs/concepts/verifier.md for who holds what.
"""

from cuagent.worker.arms import ModelSpec
from cuagent.worker.channel import Status
from cuagent.worker.fork_server import ForkServer, ForkServerError
from cuagent.worker.memory.arena import Arena, Layout, layout_of
from cuagent.worker.session import Block, Session, SessionEnded

__all__ = [
    "Arena",
    "Block",
    "ForkServer",
    "ForkServerError",
    "Layout",
    "ModelSpec",
    "Session",
    "SessionEnded",
    "Status",
    "layout_of",
]
