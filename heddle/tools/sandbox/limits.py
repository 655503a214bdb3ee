"""What a sandboxed program may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one run. Those on processor time and memory hold for each process of the program."""

    cpu_s: float = 5.0
    """Rounded up to whole seconds."""
    memory_bytes: int = 512 * 1024 * 1024
    """Address space beyond that of the bare interpreter."""
    output_bytes: int = 16 * 1024
    """Standard output and error together, as the model sees them; more is cut in the middle."""
    file_bytes: int = 8 * 1024 * 1024
    """Of one file."""
    disk_bytes: int = 64 * 1024 * 1024
    """Of all files together; not enforced without namespaces."""
    max_processes: int = 32
    """Processes and threads at once."""
    max_open_files: int = 128
