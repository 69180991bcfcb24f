"""The commands: thin, one file for one or two. They parse, call the rooms and choose an exit code.

Nothing here imports torch, a provider or a terminal library at module level, so that
`cuagent --help` answers at once.
"""
