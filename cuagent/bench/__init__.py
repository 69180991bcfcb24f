"""Benchmarks: many tasks, each certified, optimized in a process of its own and scored three ways.

    problems = kernelbench(Path("KernelBench"), levels=(1, 2))
    run(problems, settings, out, Engine(...), observe)    # appends to out/results.jsonl
    columns(read_results(out))                            # fast_p and geometric means

One module, `solve.py`, calls the agent and the judge. All others handle plain records.
"""
