#!/bin/bash
#SBATCH --job-name=train
#SBATCH --comment=clusterrun:20260102-030405-train:f00dcafe
#SBATCH --chdir=/home/ada/project
#SBATCH --output=/home/ada/.clusterrun/runs/20260102-030405-train/job.out
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --no-requeue
# A file system that is in trouble for a moment is waited for; the job goes on without this file if it must.
for pause in 1 1 2 4 8 16; do
  ( : >>/home/ada/.clusterrun/runs/20260102-030405-train/job.out ) 2>/dev/null && break
  sleep "$pause"
done
exec >>/home/ada/.clusterrun/runs/20260102-030405-train/job.out 2>&1
explained=
# A signal ends this script if Slurm would queue the job again for its exit code (RequeueExit, RequeueExitHold).
end_batch_script() {
  code=$?
  [ "$code" = 0 ] && return
  [ -n "$explained" ] || printf 'clusterrun: the script ended with exit code %s on %s\n' "$code" "$(hostname)" >&2
  [ "${SLURM_TASK_PID-}" = "$$" ] || return
  codes=$(timeout 12 scontrol show config 2>/dev/null | grep '^RequeueExit' | tr -d ' ')
  [ "$codes" = $'RequeueExit=(null)\nRequeueExitHold=(null)' ] || kill -TERM "$$"
}
trap end_batch_script EXIT
export CLUSTERRUN_PATH_BEFORE_SETUP="${PATH-}"
setup_failed() {
  printf 'clusterrun: --setup ended with exit code %s on %s: %s\n' "$1" "$(hostname)" "$2" >&2
  explained=yes
  exit "$1"
}

missing=
command -v -- /opt/venv/bin/python >/dev/null || missing=/opt/venv/bin/python
[ -r /home/ada/.clusterrun/runs/20260102-030405-train/agent.pyz ] || missing=/home/ada/.clusterrun/runs/20260102-030405-train/agent.pyz
if [ -n "$missing" ]; then
  printf 'clusterrun: node %s cannot use %q; see --python and --setup, or CLUSTERRUN_HOME for the run directory\n' \
    "$(hostname)" "$missing" >&2
  exit 127
fi
# Of these Slurm 20.11 to 21.08, and 23.11 on, would cut the step down to the CPUs that the job asked for,
# on a node that is given whole.
unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK
# This shell becomes the coordinator, so that Slurm's signals reach it.
exec /opt/venv/bin/python -I -S /home/ada/.clusterrun/runs/20260102-030405-train/agent.pyz coordinate /home/ada/.clusterrun/runs/20260102-030405-train
