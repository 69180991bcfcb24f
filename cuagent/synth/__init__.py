"""New tasks for training and benchmarks: composed from operators of torch, then filtered by checks.

In this package a candidate is a composed task that the checks have not accepted yet, and a seed is
a template of one operator call.

seeds.py, catalogue.py    operator templates with signatures from the installed torch, by family
templates.py, draft.py    fill the placeholders of one call; build up one task
dimensions.py             choices for sizes
compose.py, blocks.py     candidates of the grammar; blocks of transformers and timm
language_model.py         candidates of a language model
source.py, labelled.py    text, labels and fingerprints; labels of the operators that run
examine.py, sizes.py      the checks that run code, in a process for each candidate (order.py)
shared_gpu.py             how these processes share a GPU
workers.py, warm.py       these processes
run.py, shards.py         a run that resumes; its records
dataset.py, finish.py     the parquet file; card.py: its data card; grade.py: difficulty
audit.py, kernelbench.py  audits of files; collisions with KernelBench
"""
