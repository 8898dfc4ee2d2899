"""For Spack: `spack repo add packaging/spack`, then `spack dev-build py-clusterrun@0.1.0` in a checkout."""

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyClusterrun(PythonPackage):
    """Launch PyTorch training on many nodes with one command, on Slurm or on this machine."""

    license("MIT")
    has_code = True

    version("0.1.0")

    depends_on("python@3.9:", type=("build", "run"))
    depends_on("py-setuptools@65:", type="build")
    depends_on("py-click@8.1.7:", type=("build", "run"))
    depends_on("py-jinja2@3.0:", type=("build", "run"))
    depends_on("py-psutil@5.9:", type=("build", "run"))
    depends_on("py-submitit@1.5:", type=("build", "run"))
    depends_on("py-cloudpickle@2:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-tomli@2:", when="^python@:3.10", type=("build", "run"))
