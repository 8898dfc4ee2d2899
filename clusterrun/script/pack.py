"""Packs the node-side program into one file; the packages that run on nodes.

The file is an archive of every source with the bytecode of the packing interpreter in front of it:
the same version starts at once, another one compiles the sources for itself. Bytecode is not
compressed: 1,250 agents start at the same time, and each would have to unpack it; sources are, for
few are ever read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.atomic_file import write_whole
from clusterrun.model import contract

if TYPE_CHECKING:
    import zipfile
    from types import CodeType

_PACKAGES = (
    "model",
    "proc.py",
    "atomic_file.py",
    "slurm_text",
    "container_runtimes.py",
    "diagnosis",
    "runtime",
    "protocol",
    "preflight",
    "monitor",
    "rank_hooks",
    "agent",
    "coordinator",
    "node",
)
_MAIN = "node/__main__.py"
_START = "__main__.py"
_FIRST = ("__init__", "model/__init__", "model/contract", "runtime/__init__", "runtime/zip_bytecode")
_BEFORE_ALL = tuple(f"clusterrun/{name}.py" for name in _FIRST)
"""What is loaded before the bytecode in front can be: it lies in the archive as bytecode too."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNCHECKED_HASH = (1).to_bytes(4, "little")


def agent_program(cache: str) -> Path:
    """The packed program below ``cache``, made if need be; its name tells its content, for good."""
    sources = dict(_sources(Path(__file__).resolve().parents[1]))
    path = Path(cache) / f"agent-{_digest(sources)}.pyz"
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(str(path), packed(sources))
    return path


def _sources(package: Path) -> Iterator[tuple[str, bytes]]:
    """Every file of the program by its name inside it, in order."""
    yield _START, (package / _MAIN).read_bytes()
    yield "clusterrun/__init__.py", (package / "__init__.py").read_bytes()
    for part in _PACKAGES:
        for path in [package / part] if part.endswith(".py") else sorted((package / part).rglob("*.py")):
            yield f"clusterrun/{path.relative_to(package).as_posix()}", path.read_bytes()


def _digest(sources: dict[str, bytes]) -> str:
    digest = hashlib.sha256(contract.BYTECODE_TAG)
    for name, source in sources.items():
        digest.update(f"{name} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()[:16]


def packed(sources: dict[str, bytes]) -> bytes:
    """The program file: the same sources and interpreter give the same bytes."""
    import zipfile  # slow to load, and the program is packed once for each version

    content = io.BytesIO()
    content.write(_front(sources))
    with zipfile.ZipFile(content, "a", zipfile.ZIP_STORED) as archive:
        for name, source in sources.items():
            if name == _START or name in _BEFORE_ALL:
                # zipimport looks for bytecode first and passes it over if it is another version's.
                head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
                archive.writestr(_entry(name + "c"), head + marshal.dumps(_code(name, source)))
            archive.writestr(_entry(name), source, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _front(sources: dict[str, bytes]) -> bytes:
    """What ``runtime/zip_bytecode.py`` reads, as it says there."""
    index: dict[str, tuple[int, int, bool]] = {}
    codes = b""
    for name, source in sources.items():
        code = marshal.dumps(_code(name, source))
        whole = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        index[whole] = (len(codes), len(code), name.endswith("/__init__.py"))
        codes += code
    listed = marshal.dumps(index)
    return contract.BYTECODE_TAG + len(listed).to_bytes(4, "little") + listed + codes


def _entry(name: str) -> zipfile.ZipInfo:
    import zipfile

    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o600 << 16
    return entry


def _code(name: str, source: bytes) -> CodeType:
    return compile(source, name, "exec", dont_inherit=True, optimize=0)
