"""Build the stand-ins for the torch of the Python that runs this, and put them beside torch's own libraries.

    VENV/bin/python build.py

The CUDA build of torch finds its libraries by a path relative to its own (RPATH), so nothing else is set.
Every library that torch's libraries name, and that neither torch nor this folder has, gets a stand-in whose
functions answer 801 (not supported). Ours get such functions too, for all that torch needs beyond what they
do. Only names come from torch's libraries: readelf prints them, with the symbol versions that the loader
compares.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
KERNELS = "libcuda_standin.so"
OURS = {"libcudart": "cudart.cpp", "libnvidia-ml": "nvml.cpp", "libnccl": "nccl.cpp"}
NOT_SUPPORTED = 801
# Names without a version go to the library by their beginning.
BEGINNINGS = {
    r"nccl": "libnccl",
    r"cuFile": "libcufile",
    r"cusparseLt": "libcusparseLt",
    r"nvshmem": "libnvshmem_host",
    r"curand": "libcurand",
    r"cu[A-Z]": "libcuda",
}
NAMED_OTHERWISE = {"NVSHMEM": "libnvshmem_host"}
OF_NVIDIA = ("libcu", "libnv", "libnccl")
# torch 2.14 needs C++20.
CXX = ("g++", "-std=c++20", "-O2", "-fPIC", "-Wall", "-Wextra")


def output_of(*command: object) -> str:
    return subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def stem(soname: str) -> str:
    return soname.split(".so")[0]


def needed_by(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", output_of("readelf", "-d", "-W", library))


def undefined_in(library: Path) -> list[tuple[str, str]]:
    """Return (name, version) of the symbols that ``library`` takes from others; version '' if it has none."""
    rows = (line.split() for line in output_of("readelf", "--dyn-syms", "-W", library).splitlines())
    names = [row[7].split("@") for row in rows if len(row) > 7 and row[6] == "UND"]
    return [(name[0], name[-1] if len(name) > 1 else "") for name in names]


def wanted(libraries: list[Path]) -> tuple[dict[str, set[str]], dict[str, str]]:
    """Return the functions that torch needs, by soname, and their symbol versions."""
    own = {library.name for library in libraries}
    needed = {name for library in libraries for name in needed_by(library)} - own
    sonames = {stem(name): name for name in needed if name.startswith(OF_NVIDIA)}
    sonames |= {"libcuda": "libcuda.so.1", "libnvidia-ml": "libnvidia-ml.so.1"}
    functions: dict[str, set[str]] = {soname: set() for soname in sonames.values()}
    versions: dict[str, str] = {}
    for name, version in (symbol for library in libraries for symbol in undefined_in(library)):
        if version in functions:
            soname = version
        elif version:
            soname = sonames.get(NAMED_OTHERWISE.get(version, ""), "")
        else:
            start = next((start for start in BEGINNINGS if re.match(start, name)), "")
            soname = sonames.get(BEGINNINGS.get(start, ""), "")
        if soname:
            functions[soname].add(name)
            if version:
                versions[soname] = version
    # torch looks these up by name when it first needs one of them.
    for library in libraries:
        if library.name == "libc10_cuda.so":
            names = re.findall(rb"\0(cu[A-Z]\w+)(?=\0)", library.read_bytes())
            functions["libcuda.so.1"] |= {name.decode() for name in names}
    return functions, versions


def build(torch: Path, work: Path) -> None:
    cuda = re.search(r"^cuda\b.*= '(\d+)\.(\d+)'", (torch / "version.py").read_text(), re.M)
    if cuda is None:
        raise SystemExit(f"{torch} is no CUDA build")
    requirements = importlib.metadata.requires("torch") or []
    pattern = r"nvidia-nccl\S* ?\(?==(\d+)\.(\d+)\.(\d+)"
    nccl = next(match.groups() for text in requirements if (match := re.match(pattern, text)))
    defines = (
        f"-DCUDA_VERSION={int(cuda[1]) * 1000 + int(cuda[2]) * 10}",
        f"-DNCCL_VERSION={int(nccl[0]) * 10000 + int(nccl[1]) * 100 + int(nccl[2])}",
    )
    work.mkdir(parents=True, exist_ok=True)
    lib = torch / "lib"
    # A library of an earlier build is a stand-in; torch's own are not.
    libraries = [path for path in lib.glob("lib*.so") if path.is_file()] + list(torch.glob("_C*.so"))
    functions, versions = wanted(libraries)
    runtime = next(soname for soname in functions if stem(soname) == "libcudart")
    of_runtime: set[str] = set()
    for soname in sorted(functions, key=lambda soname: (soname != runtime, soname)):
        present: set[str] = set()
        objects = []
        if stem(soname) in OURS:
            objects.append(work / f"{stem(soname)}.o")
            source = FOLDER / OURS[stem(soname)]
            output_of(*CXX, *defines, "-fvisibility=hidden", "-c", source, "-o", objects[0])
            rows = output_of("nm", "-g", "--defined-only", objects[0]).splitlines()
            present = {row.split()[-1] for row in rows}
        if soname == runtime:
            of_runtime = present
        if stem(soname) == "libcuda":
            present = of_runtime  # The driver's functions are in the runtime's file.
            objects.append(lib / runtime)
        absent = sorted(functions[soname] - present)
        code, versioning = work / f"{soname}.c", work / f"{soname}.map"
        code.write_text("".join(f"int {name}(void) {{ return {NOT_SUPPORTED}; }}\n" for name in absent))
        versioning.write_text(f"{versions.get(soname, '')} {{ global: *; }};\n")
        objects.append(work / f"{soname}.c.o")
        output_of("gcc", "-w", "-fno-builtin", "-fPIC", "-c", code, "-o", objects[-1])
        flags = (
            f"-Wl,-soname,{soname}",
            f"-Wl,--version-script={versioning}",
            "-pthread",
            "-ldl",
            "-Wl,--no-as-needed",
        )
        output_of(*CXX, "-shared", *flags, *objects, "-o", work / soname)
        (work / soname).replace(lib / soname)  # Running programs keep the library that they have.
        kind = "stand-in" if present else "empty"
        count = len(functions[soname]) - len(absent)
        print(f"{soname}: {kind}, {count} functions, {len(absent)} not supported")

    include = (f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}")
    # The name of a function that returns a string shows the string class that torch was compiled with.
    is_new = "_ZN3c108toStringB5cxx11ERKNS_12OperatorNameE" in torch_symbols(lib / "libtorch_cpu.so")
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(is_new)}"
    kernels = FOLDER / "cpu_kernels.cpp"
    flags = ("-w", abi, *include, "-shared", f"-L{lib}", "-Wl,--no-as-needed")
    output_of(*CXX, *flags, kernels, "-ltorch_cpu", "-lc10", "-o", work / KERNELS)
    (work / KERNELS).replace(lib / KERNELS)


def torch_symbols(library: Path) -> str:
    return output_of("nm", "-D", "--defined-only", library)


def install_entry_point(packages: Path) -> None:
    """Make torch load ``cuda_standin.py`` when it is imported."""
    (packages / "cuda_standin.py").write_text((FOLDER / "cuda_standin.py").read_text())
    metadata = packages / "cuda_standin-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: cuda-standin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\ncuda_standin = cuda_standin:load\n")


if __name__ == "__main__":
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("there is no torch here")
    torch = Path(spec.submodule_search_locations[0])
    build(torch, Path(sys.prefix) / "cuda-standin-build")
    install_entry_point(torch.parent)
