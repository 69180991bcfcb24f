"""The commands of `cuagent`, one or two per file.

They parse arguments, call other packages and choose an exit code. Nothing here imports torch, a
provider or a terminal library at module level, so that `cuagent --help` starts quickly.
"""
