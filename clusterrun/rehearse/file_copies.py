"""Find kinds of checkpoint files that hold the same content, as `step_20.pt` and `last.pt` often do."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable, Mapping

from clusterrun.rehearse.rank_trace import SavedFile, kind_of


def twin_kinds(saves: Iterable[SavedFile], root: str) -> Mapping[str, tuple[str, ...]]:
    """Return for each kind of file the other kinds whose newest file has the same content."""
    newest: dict[str, SavedFile] = {}
    for save in saves:
        kind = kind_of(save.path, root)
        if os.path.isfile(save.path) and save.step >= newest.get(kind, save).step:
            newest[kind] = save
    kinds_by_content: dict[object, list[str]] = {}
    for kind, save in newest.items():
        kinds_by_content.setdefault((save.step, _content(save.path)), []).append(kind)
    return {
        kind: tuple(other for other in kinds if other != kind)
        for kinds in kinds_by_content.values()
        for kind in kinds
    }


def _content(path: str) -> object:
    """Return what is equal for files of equal content; the path itself if the file cannot be read.

    torch.save writes the file's name into the archive, so checksums of the tensors are compared.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            tensors = [entry for entry in archive.infolist() if "/data/" in entry.filename]
            if tensors:
                return tuple(sorted((entry.CRC, entry.file_size) for entry in tensors))
    except (OSError, zipfile.BadZipFile):
        pass
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return path
    return digest.hexdigest()
