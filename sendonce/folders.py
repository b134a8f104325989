"""Folders that only their owner reads: what lies in them holds people's addresses."""

import os
from pathlib import Path


def private_folder(path: Path) -> None:
    """Make a folder, and what is missing above it, for its owner alone; what is there stays as it is. OSError."""
    missing = []
    above = path.parent
    while not os.path.lexists(above):
        missing.append(above)
        above = above.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
