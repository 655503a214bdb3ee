"""Write the generated files into the package."""

from __future__ import annotations

from pathlib import Path

from heddle.environments.authoring.files import generated_files

if __name__ == "__main__":
    for path, content in generated_files().items():
        (Path(__file__).parent.parent / path).write_bytes(content)
