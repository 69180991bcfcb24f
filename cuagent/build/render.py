"""Format a build as a short text for agents and users."""

from __future__ import annotations

from cuagent.build.result import Build, Diagnostic


def render(build: Build) -> str:
    """Return one line per library and kernel, and one or two lines per diagnostic."""
    head = "built" if build.ok else "build failed"
    lines = [
        f"{head} in {build.seconds:.2f} s" if build.libraries or not build.ok else "no sources"
    ]
    for library in build.libraries:
        how = "cached" if library.cached else f"{library.seconds:.2f} s"
        lines.append(f"  {library.source}: {how}")
        for kernel in library.resources:
            spills = f", {kernel.spill_bytes} B spilled" if kernel.spill_bytes else ""
            stack = f", {kernel.stack_bytes} B stack" if kernel.stack_bytes else ""
            lines.append(
                f"    {kernel.name}: {kernel.registers} registers, "
                f"{kernel.shared_bytes} B static shared{spills}{stack}"
            )
    lines += [line for diagnostic in build.diagnostics for line in _lines(diagnostic)]
    return "\n".join(lines)


def _lines(diagnostic: Diagnostic) -> list[str]:
    where = f"{diagnostic.file}:{diagnostic.line}" if diagnostic.line else diagnostic.file
    lines = [f"{where}: {diagnostic.severity}: {diagnostic.message}"]
    return lines + ([f"    {diagnostic.source_line}"] if diagnostic.source_line else [])
