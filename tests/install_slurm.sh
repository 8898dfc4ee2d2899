#!/bin/sh
# Installs the distribution's Slurm for the tests that need one. Where it cannot, it says so: they are then skipped.
set -u
wanted="slurmctld slurmd slurm-client munge iproute2 iptables"

slurm_is_here() {
    for program in slurmctld slurmd sbatch srun squeue munged ip iptables; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || return 1
    done
}

slurm_is_here && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Slurm is not installed; as root on Debian or Ubuntu it would be. The tests that need it are skipped."
    exit 0
fi
echo "installing Slurm from the distribution: $wanted"
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update || echo "the package lists could not be renewed: trying with those that are here"
# shellcheck disable=SC2086 # the list is meant to fall apart into words
apt-get -qq install --yes --no-install-recommends $wanted >/dev/null
slurm_is_here || echo "Slurm could not be installed: the tests that need it are skipped."
