"""The agent: a language model with tools, in a loop that ends.

run = start_run(task, judge, model=model.name, tools=[t.spec for t in TOOLS], emit=view)
stop = run_agent(run, model, emit=view)
"""

from cuagent.agent.hooks import HOOKS, Hook
from cuagent.agent.loop import run_agent
from cuagent.agent.run import Run, Tried, start_run
from cuagent.agent.stop import Budget, Stop
from cuagent.agent.tools import TOOLS

__all__ = ["HOOKS", "TOOLS", "Budget", "Hook", "Run", "Stop", "Tried", "run_agent", "start_run"]
