"""Checkpoints on disk that a crash cannot spoil: written whole, named by their checksum; knows no model."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import torch

KEPT = 2
"""The newest ones stay: one to go on from, one in case that one is damaged."""
DIGEST = 16
PATTERN = f"step-*.{'?' * DIGEST}.pt"


def write(directory: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the state after ``step`` steps, so that a reader finds all of it or nothing.

    The checksum stands in the name: one rename publishes the content and what proves it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    held = io.BytesIO()
    torch.save(state, held)
    content = held.getvalue()
    path = directory / f"step-{step:09d}.{digest(content)}.pt"
    unfinished = directory / f".{path.name}.{os.getpid()}"
    try:
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_directory(directory)
    for old in newest_first(directory)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def newest(directory: Path) -> dict[str, Any] | None:
    """The newest state that is whole, or None; a damaged file is named and passed over."""
    for path in newest_first(directory):
        content = path.read_bytes()
        if digest(content) == path.name.split(".")[1]:
            return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
        print(f"checkpoint {path} is damaged (its checksum differs) and is passed over", file=sys.stderr)
    return None


def newest_first(directory: Path) -> list[Path]:
    """All checkpoint files, whole or damaged, the highest step first."""
    return sorted(directory.glob(PATTERN), reverse=True)


def digest(content: bytes) -> str:
    """The checksum as it stands in a file's name."""
    return hashlib.sha256(content).hexdigest()[:DIGEST]


def sync_directory(directory: Path) -> None:
    """Make a rename inside the directory survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
