"""Run models in separate processes and define the narrow ways into and out of these processes.

`ForkServer` is a process that has imported torch. `Session` is one model in a process forked from
it: an untrusted candidate or a trusted reference. `Arena` is memory that the referee owns and lends
to these processes. docs/concepts/verifier.md says who holds what.
"""

from cuagent.worker.arms import ModelSpec
from cuagent.worker.channel import Status
from cuagent.worker.driven_process import SessionEnded
from cuagent.worker.fork_server import ForkServer, ForkServerError
from cuagent.worker.memory.arena import Arena, Layout, layout_of
from cuagent.worker.session import Block, Session

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
