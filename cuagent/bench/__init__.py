"""Benchmarks: optimize many tasks, each in a separate process, and score the kernels by three
rules.

    problems = kernelbench(Path("KernelBench"), levels=(1, 2))
    with opened_for_writing(out) as results:
        orders = orders_for(problems, BenchSettings(), device_name, out)
        run_orders(orders, LocalEngine(out / "logs"), slots, results, observe)
    rows_by(read_results(out), group_of)    # fast_p and geometric means

Only `solve.py` and `optimize.py` call the agent and the judge. All other modules process plain
records.
"""
