"""Write a first ``clusterrun.toml`` from what the site offers: partitions, accounts, modules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from clusterrun import system
from clusterrun.model.errors import ClusterrunError, SchedulerError
from clusterrun.model.frozen import frozen
from clusterrun.model.phrases import count_of
from clusterrun.operations.context import Context
from clusterrun.slurm.queries import GpuRow, PartitionOffer

# Limits in seconds. A login shell may read slow files.
_ACCOUNTS_SECONDS = 10.0
_MODULES_SECONDS = 20.0
_USEFUL = re.compile(
    r"(?:py-?)?(?:torch|cuda(?:toolkit)?|python|conda|anaconda|miniconda|miniforge|mamba|nccl|rocm)\d*\b",
    re.I,
)
# Marks behind a module's name, such as ``(default)``.
_MARKS = re.compile(r"(?:\(.*\)|[*@:])$")
_MOST_MODULES = 12


@frozen
class SiteOffer:
    """The choices that a site offers a user."""

    partitions: tuple[PartitionOffer, ...]
    gpus: tuple[GpuRow, ...]
    accounts: tuple[str, ...]  # the default account first; () if the site has no accounting
    modules: tuple[str, ...]  # modules with an environment for PyTorch; () if there is no module command
    # The accounts among them that each partition accepts. A partition that is absent accepts all.
    accepted: Mapping[str, tuple[str, ...]]

    def accounts_of(self, partition: str) -> tuple[str, ...]:
        return self.accepted.get(partition, self.accounts)

    @property
    def default_partition(self) -> str:
        """Return the partition with GPUs, if the default one has none and only one other has."""
        default = next((offer for offer in self.partitions if offer.default), None)
        with_gpus = [offer for offer in self.partitions if offer.gpus]
        if len(with_gpus) == 1 and not (default and default.gpus):
            return with_gpus[0].name
        return default.name if default else self.partitions[0].name


def site_offer(context: Context, user: str) -> SiteOffer:
    """Ask Slurm and the module command. Raises ``SchedulerError`` without Slurm or partitions."""
    client = context.slurm()
    partitions = tuple(offer for offer in client.partitions() if offer.available == "up")
    if not partitions:
        raise SchedulerError("no partition is up for you", "see sinfo")
    try:
        gpus = client.gpus()
    except ClusterrunError:
        gpus = ()
    query = ("sacctmgr", "--noheader", "--parsable2", "show")
    default = _lines((*query, "user", user, "format=DefaultAccount"), _ACCOUNTS_SECONDS)
    all_accounts = _lines((*query, "associations", f"user={user}", "format=Account"), _ACCOUNTS_SECONDS)
    accounts = tuple(dict.fromkeys((*default, *all_accounts)))
    # The accounts that each partition accepts.
    accepted: dict[str, tuple[str, ...]] = {}
    for line in _lines(("scontrol", "--oneliner", "show", "partition"), _ACCOUNTS_SECONDS):
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        allowed, denied = fields.get("AllowAccounts", "ALL"), fields.get("DenyAccounts", "")
        accepted[fields.get("PartitionName", "")] = tuple(
            account
            for account in accounts
            if (allowed == "ALL" or account in allowed.split(",")) and account not in denied.split(",")
        )
    script = "type module >/dev/null 2>&1 && module --terse avail 2>&1"
    names = _lines(("bash", "-lc", script), _MODULES_SECONDS)
    useful = dict.fromkeys(_MARKS.sub("", name) for name in names if _USEFUL.match(name))
    modules = tuple(name for name in useful if not name.endswith("/"))[:_MOST_MODULES]
    return SiteOffer(partitions, gpus, accounts, modules, accepted)


def _lines(argv: tuple[str, ...], seconds: float) -> list[str]:
    """Return the lines that a program prints; none if it is absent, fails or takes too long."""
    try:
        completed = system.run(argv, seconds)
    except (system.ProgramMissing, system.ProgramTimeout):
        return []
    return (
        [line.strip() for line in completed.out.splitlines() if line.strip()] if completed.code == 0 else []
    )


def configuration_text(offer: SiteOffer, partition: str, account: str, setup: str) -> str:
    """Return a commented ``clusterrun.toml`` with a profile for each partition."""
    lines = [
        "# Options that every clusterrun command in this folder has: clusterrun config show",
        "[defaults]",
        f"partition = {json.dumps(partition)}",
        f"account = {json.dumps(account)}" if account else '# account = "NAME"',
        "# Shell lines that prepare the nodes, in this order.",
        f"setup = [{json.dumps(setup)}]" if setup else '# setup = ["module load cuda"]',
        '# time = "2h"',
        "",
        "# clusterrun submit --profile NAME takes the options of [profile.NAME].",
    ]
    for row in offer.partitions:
        name = json.dumps(row.name)
        nodes = count_of(row.nodes, "node")
        kinds = sorted({gpu.gpu_type for gpu in offer.gpus if gpu.partition == row.name and gpu.gpu_type})
        types = f" ({', '.join(kinds)})" if kinds else ""
        gpus = f", {row.gpus} GPUs{types}" if row.gpus else ""
        size = f"{row.cpus} CPUs, {row.memory // 1024} GiB{gpus}"
        about = f"{nodes} of up to {size}; time limit {row.time_limit}".replace("\n", " ")
        lines += ["", f"# {about}", f"[profile.{name}]", f"partition = {name}"]
        if row.gpus:
            lines.append(f"gpus = {json.dumps(_gpus(row, offer.gpus))}")
        accounts = offer.accounts_of(row.name)
        if accounts and account in offer.accounts and account not in accounts:
            lines.append(f"account = {json.dumps(accounts[0])}")
        elif offer.accounts and not accounts:
            lines.append("# None of your accounts may use this partition.")
    return "\n".join(lines) + "\n"


def _gpus(offer: PartitionOffer, rows: Iterable[GpuRow]) -> str:
    """Return the GPUs of the partition's largest node, with their type if there is only one."""
    kinds = {row.gpu_type for row in rows if row.partition == offer.name}
    kind = next(iter(kinds)) if len(kinds) == 1 else ""
    return f"{kind}:{offer.gpus}" if kind else str(offer.gpus)
