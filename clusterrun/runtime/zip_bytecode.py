"""Load the program's modules from the bytecode in front of its own archive; knows no module's meaning.

An import from a zip archive opens it again for each module and searches unrelated names. This takes a quarter
of an agent's start, and 1,250 agents start at once. A Python of another version than the packing one skips
the bytecode and reads the archive's sources.

The file holds the tag of that version (``BYTECODE_TAG``), the length of the index (4 bytes), the index, the
code of every module, and the archive. The index gives for each module its name, the offset of its code from
the first module's, the code's length, and whether the module is a package.
"""

from __future__ import annotations

import marshal
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from clusterrun.model.contract import BYTECODE_TAG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from zipimport import zipimporter

    Index = dict[str, tuple[int, int, bool]]

HEAD = len(BYTECODE_TAG) + 4


def use(archive: zipimporter) -> None:
    """Load modules from the bytecode in front of ``archive`` from now on, if it is of this version."""
    # The file stays open, so that late imports work even if the run directory was deleted.
    fd = os.open(archive.archive, os.O_RDONLY | os.O_CLOEXEC)
    head = os.read(fd, HEAD)
    if head[: len(BYTECODE_TAG)] != BYTECODE_TAG:
        os.close(fd)
        return
    length = int.from_bytes(head[len(BYTECODE_TAG) :], "little")
    index = marshal.loads(os.read(fd, length))
    sys.meta_path.insert(0, Bytecode(archive, index, fd, HEAD + length))


class Bytecode:
    """A finder and loader of the modules in ``index``, whose code begins at byte ``first`` of ``fd``."""

    def __init__(self, archive: zipimporter, index: Index, fd: int, first: int) -> None:
        self._archive, self._index, self._fd, self._first = archive, index, fd, first

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self._index:
            return None
        package = self._index[name][2]
        ending = "/__init__.py" if package else ".py"
        origin = f"{self._archive.archive}/{name.replace('.', '/')}{ending}"
        spec = ModuleSpec(name, self, origin=origin, is_package=package)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        place, size, _ = self._index[module.__name__]
        code = marshal.loads(os.pread(self._fd, size, self._first + place))
        exec(code, module.__dict__)

    def get_source(self, name: str) -> str | None:
        return self._archive.get_source(name.replace(".", "/"))

    def get_data(self, path: str) -> bytes:
        return self._archive.get_data(path)
