#!/bin/bash

exec >>/home/ada/.clusterrun/runs/20261122-111902-eaq1-train/job.out 2>&1

missing=
command -v -- /usr/bin/python3 >/dev/null || missing=/usr/bin/python3
[ -r /home/ada/.clusterrun/runs/20261122-111902-eaq1-train/agent.pyz ] || missing=/home/ada/.clusterrun/runs/20261122-111902-eaq1-train/agent.pyz
if [ -n "$missing" ]; then
  printf 'clusterrun: node %s cannot use %q\n' "$(hostname)" "$missing" >&2
  echo 'clusterrun: every node needs it: see --python and --setup for the Python, CLUSTERRUN_HOME for the run directory' >&2
  exit 127
fi
# Of these Slurm 20.11 to 21.08, and 23.11 on, would cut the step down to the CPUs that the job asked for,
# on a node that is given whole.
unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK
# This shell becomes the coordinator, so that Slurm's signals reach it.
exec /usr/bin/python3 -I -S /home/ada/.clusterrun/runs/20261122-111902-eaq1-train/agent.pyz coordinate /home/ada/.clusterrun/runs/20261122-111902-eaq1-train
