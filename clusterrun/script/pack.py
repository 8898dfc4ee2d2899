"""Pack the node-side program into one file: the packages that run on nodes.

The file is an archive of all sources, preceded by the bytecode of the packing interpreter. The same Python
version starts at once. Another version compiles the sources itself. The bytecode is not compressed, because
1,250 agents start at the same time and each would have to unpack it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clusterrun.atomic_file import write_whole
from clusterrun.model import contract

if TYPE_CHECKING:
    import zipfile
    from types import CodeType

_PACKAGES = (
    *("model", "proc.py", "atomic_file.py", "slurm_text", "container_runtimes.py", "diagnosis", "notify"),
    *("runtime", "protocol", "preflight", "monitor", "rank_hooks", "agent", "coordinator", "node"),
)
_MAIN = "node/__main__.py"
_START = "__main__.py"
_FIRST = ("__init__", "model/__init__", "model/contract", "runtime/__init__", "runtime/zip_bytecode")
# Modules that are loaded before the bytecode at the front. The archive contains their bytecode too.
_BEFORE_ALL = tuple(f"clusterrun/{name}.py" for name in _FIRST)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNCHECKED_HASH = (1).to_bytes(4, "little")


def agent_program(cache: str) -> str:
    """Return the path of the packed program below ``cache``, and create it if it is missing.

    Its name contains a hash of its content, so it never changes.
    """
    sources = dict(_sources(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    digest = hashlib.sha256(contract.BYTECODE_TAG)
    for name, source in sources.items():
        digest.update(f"{name} {len(source)}\n".encode())
        digest.update(source)
    path = os.path.join(cache, f"agent-{digest.hexdigest()[:16]}.pyz")
    if not os.path.exists(path):
        os.makedirs(cache, mode=0o700, exist_ok=True)
        write_whole(path, packed(sources))
    return path


def _sources(package: str) -> Iterator[tuple[str, bytes]]:
    """Yield every source file of the program with its name in the archive, in order."""
    yield _START, _content(os.path.join(package, _MAIN))
    yield "clusterrun/__init__.py", _content(os.path.join(package, "__init__.py"))
    for part in _PACKAGES:
        path = os.path.join(package, part)
        walk = os.walk(path) if os.path.isdir(path) else [(package, [], [part])]
        sources = [os.path.join(folder, name) for folder, _, names in walk for name in names]
        for source in sorted(source for source in sources if source.endswith(".py")):
            yield f"clusterrun/{os.path.relpath(source, package)}", _content(source)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def packed(sources: dict[str, bytes]) -> bytes:
    """Return the program file. The same sources and interpreter produce the same bytes."""
    import zipfile  # slow to import, and needed once per version

    content = io.BytesIO()
    # The bytecode section, in the format that ``runtime/zip_bytecode.py`` defines.
    index: dict[str, tuple[int, int, bool]] = {}
    codes = b""
    for name, source in sources.items():
        code = marshal.dumps(_code(name, source))
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        index[module] = (len(codes), len(code), name.endswith("/__init__.py"))
        codes += code
    listed = marshal.dumps(index)
    front = contract.BYTECODE_TAG + len(listed).to_bytes(4, "little") + listed + codes
    content.write(front)
    with zipfile.ZipFile(content, "a", zipfile.ZIP_STORED) as archive:
        for name, source in sources.items():
            if name == _START or name in _BEFORE_ALL:
                # zipimport looks for bytecode first and ignores bytecode of another version.
                head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
                archive.writestr(_entry(name + "c"), head + marshal.dumps(_code(name, source)))
            archive.writestr(_entry(name), source, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    import zipfile

    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o600 << 16
    return entry


def _code(name: str, source: bytes) -> CodeType:
    return compile(source, name, "exec", dont_inherit=True, optimize=0)
