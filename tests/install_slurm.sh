#!/bin/sh
# Installs the distribution's Slurm for the tests that need one: install_slurm.sh CLUSTERRUN. Where it cannot, it says so.
set -u
missing=
for program in slurmctld slurmd slurmdbd mariadbd munged sbatch ip; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing="$missing $program"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not here:$missing; as root on Debian or Ubuntu they would be installed. The tests that need them are skipped."
    exit 0
fi
echo "installing Slurm and MariaDB from the distribution; not here yet:$missing"
DEBIAN_FRONTEND=noninteractive "$1" lab install --accounting >/dev/null ||
    echo "Slurm could not be installed: the tests that need it are skipped."
