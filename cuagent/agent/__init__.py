"""The agent: a language model that calls tools in a loop until a stop.

run = start_run(task, judge, model=model.name, tools=[t.spec for t in TOOLS], emit=view)
stop = run_agent(run, model, emit=view)

After any stop `run_agent(run, ...)` continues the same run and reads the messages in `run.inbox`
first. From another thread, `run.inbox.put(text)` steers the model and `run.cancel()` interrupts.
"""

from cuagent.agent.begin import resume_run, start_run
from cuagent.agent.compaction import compact
from cuagent.agent.history import diff, restore, undo
from cuagent.agent.hooks import HOOKS, INTERACTIVE, Hook
from cuagent.agent.ladder import start_at_ladder
from cuagent.agent.loop import run_agent
from cuagent.agent.run import Run
from cuagent.agent.seed import Seed, read_seed, start_from
from cuagent.agent.stop import FINISHED, Budget, Stop
from cuagent.agent.tools import TOOLS
from cuagent.agent.tried import Tried

__all__ = [
    "FINISHED",
    "HOOKS",
    "INTERACTIVE",
    "TOOLS",
    "Budget",
    "Hook",
    "Run",
    "Seed",
    "Stop",
    "Tried",
    "compact",
    "diff",
    "read_seed",
    "restore",
    "resume_run",
    "run_agent",
    "start_at_ladder",
    "start_from",
    "start_run",
    "undo",
]
