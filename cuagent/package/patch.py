"""Patch a user's file so that a class in it runs a verified kernel, and take the patch out again.

The patch is a marked block after the class, and a folder next to the file. Both texts are computed
here; `cuagent apply --to FILE` shows and writes them. Not covered: classes that are not at the top
level of the file.
Invariant: taking the block out gives the former text exactly.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re

from cuagent.package.folder import ExportError
from cuagent.task.source import parse_python

BEGIN, END = "# cuagent: begin", "# cuagent: end"
MANIFEST = "applied.json"
"""Name of the JSON file in a patch's folder that lists the digests of the folder's files."""
_BLOCK = re.compile(
    rf"(?:\r?\n){{3}}{BEGIN} (?P<folder>\w+)[^\n]*\n(?:(?!{END})[^\n]*\n)*{END}(?=\r?\n|\Z)"
)


def folder_name(stem: str, entry: str) -> str:
    """Return the folder name for the kernel of class `entry` in the file `stem`.py."""
    return re.sub(r"\W", "_", f"{stem}_{entry}_fast".lower())


def class_text(source: str, entry: str) -> str:
    """Return the source of a top-level class, normalized by `ast.unparse`; "" if there is none.

    Raises ExportError if `source` is not valid Python.
    """
    found = _class(source, entry)
    try:
        return "" if found is None else ast.unparse(found)
    except RecursionError as error:
        raise ExportError(f"its class {entry} is nested too deeply") from error


def patched(source: str, entry: str, folder: str, *, in_package: bool) -> str:
    """Return the text of the file with the block for `entry`; an earlier block is replaced.

    `in_package` adds a relative import of `folder`, with the plain import as a fallback.
    Raises ExportError if the file has no such class.
    """
    source = unpatched(source, folder)[0]
    found = _class(source, entry)
    if found is None or found.end_lineno is None:
        raise ExportError(f"it has no class {entry} at its top level")
    load = f"from {folder} import accelerate_"
    lines = [load]
    if in_package:
        relative = f"from .{folder} import accelerate_"
        lines = ["try:", f"    {relative}", "except ImportError:  # run as a script", f"    {load}"]
    note = f"{BEGIN} {folder} (take it out with: cuagent apply --undo FILE)"
    end = "\r\n" if "\r\n" in source else "\n"
    block = end.join(["", "", "", note, *lines, "", f"accelerate_({entry})", END])
    split = source.splitlines(keepends=True)
    before = "".join(split[: found.end_lineno])
    last = before.removesuffix("\n").removesuffix("\r")
    return last + block + before[len(last) :] + "".join(split[found.end_lineno :])


def unpatched(source: str, folder: str = "") -> tuple[str, list[str]]:
    """Return the text without the blocks of `folder`, or all blocks if it is "", and the folders of
    the removed blocks."""
    folders: list[str] = []

    def drop(match: re.Match[str]) -> str:
        if folder and match["folder"] != folder:
            return match[0]
        folders.append(match["folder"])
        return ""

    return _BLOCK.sub(drop, source), folders


def manifest(files: dict[str, bytes]) -> bytes:
    """Return the text of `MANIFEST` for the files of a folder."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return (json.dumps(digests, indent=1) + "\n").encode()


def unchanged(listed: str, name: str, content: bytes) -> bool:
    """Return True if the manifest `listed` (its text) has the digest of this file's content."""
    return bool(json.loads(listed).get(name) == hashlib.sha256(content).hexdigest())


def _class(source: str, entry: str) -> ast.ClassDef | None:
    try:
        body = parse_python(source).body
    except SyntaxError as error:
        raise ExportError(f"it is not valid Python ({error.msg}, line {error.lineno})") from error
    classes = (node for node in body if isinstance(node, ast.ClassDef))
    return next((node for node in classes if node.name == entry), None)
