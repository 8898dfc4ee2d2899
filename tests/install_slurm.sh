#!/bin/sh
# Installs the distribution's Slurm, Charliecloud and sshd for the tests that need them: install_slurm.sh CLUSTERRUN. Where it cannot, it says so.
set -u
missing=
containers=
for program in slurmctld slurmd slurmdbd mariadbd munged sbatch ip; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing="$missing $program"
done
command -v ch-run >/dev/null || containers=charliecloud
server=
PATH="$PATH:/usr/sbin:/sbin" command -v sshd >/dev/null || server=openssh-server
[ -z "$missing$containers$server" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not here:$missing $containers $server; as root on Debian or Ubuntu they would be installed. The tests that need them are skipped."
    exit 0
fi
if [ -n "$containers" ]; then
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends charliecloud >/dev/null 2>&1 ||
        echo "Charliecloud could not be installed: the tests that need it are skipped."
fi
if [ -n "$server" ]; then # its service is not started: the tests run their own, on a port of this machine alone
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends openssh-server \
        >/dev/null 2>&1 || echo "sshd could not be installed: the tests that need it are skipped."
fi
[ -z "$missing" ] && exit 0
echo "installing Slurm and MariaDB from the distribution; not here yet:$missing"
DEBIAN_FRONTEND=noninteractive "$1" lab install --accounting >/dev/null ||
    echo "Slurm could not be installed: the tests that need it are skipped."
