#!/bin/bash
#SBATCH --comment=clusterrun:20260102-030405-train:f00dcafe
#SBATCH --output=/dev/null
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=3
# Functions and aliases of the submitting shell must not replace the commands of this script. In POSIX mode a
# function cannot replace unset, and a backslash prevents aliases.
posix_mode=${POSIXLY_CORRECT+yes}
POSIXLY_CORRECT=${POSIXLY_CORRECT-}
\unset -f builtin command exec
[[ -n $posix_mode ]] || \unset POSIXLY_CORRECT
builtin set +eu
# Wait if the file system fails for a moment. The job continues without this file if it has to.
for pause in 1 1 2 4 8 16; do
  ( >>'/home/ada/100%\x/runs/r/job.out' ) 2>/dev/null && builtin break
  command sleep "$pause"
done
\exec >>'/home/ada/100%\x/runs/r/job.out' 2>&1
explained=
# A signal ends this script if Slurm would queue the job again for its exit code (RequeueExit, RequeueExitHold).
end_batch_script() {
  code=$?
  [[ $code = 0 ]] && builtin return
  [[ -n $explained ]] ||
    builtin printf 'clusterrun: the script ended with exit code %s on %s\n' "$code" "$(command hostname)" >&2
  [[ ${SLURM_TASK_PID-} = "$$" ]] || builtin return
  codes=$(command timeout 12 scontrol show config 2>/dev/null | command grep '^RequeueExit' | command tr -d ' ')
  [[ $codes = $'RequeueExit=(null)\nRequeueExitHold=(null)' ]] || builtin kill -TERM "$$"
}
builtin trap end_batch_script EXIT
builtin export CLUSTERRUN_PATH_BEFORE_SETUP="${PATH-}" CLUSTERRUN_SETUP_CWD=
cwd_before_setup=$PWD
setup_failed() {
  builtin printf 'clusterrun: --setup ended with exit code %s on %s: %s; mend this line, or put || : behind it if it may fail\n' \
    "$1" "$(command hostname)" "$2" >&2
  explained=yes
  builtin exit "$1"
}

# Ranks follow if the setup lines changed the directory.
[[ $PWD = "$cwd_before_setup" ]] || CLUSTERRUN_SETUP_CWD=$PWD
missing=
builtin type -P -- /opt/venv/bin/python >/dev/null || missing=/opt/venv/bin/python
[[ -r '/home/ada/100%\x/runs/r/agent.pyz' ]] || missing='/home/ada/100%\x/runs/r/agent.pyz'
if [[ -n $missing ]]; then
  builtin printf 'clusterrun: node %s cannot use %q; see --python and --setup, or CLUSTERRUN_HOME for the run directory\n' \
    "$(command hostname)" "$missing" >&2
  explained=yes
  builtin exit 127
fi
# Of these Slurm 20.11 to 21.08, and 23.11 on, would cut the step down to the CPUs that the job asked for,
# on a node that is given whole.
builtin unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK
# This shell becomes the coordinator, so that Slurm's signals reach it.
\exec /opt/venv/bin/python -I -S '/home/ada/100%\x/runs/r/agent.pyz' coordinate '/home/ada/100%\x/runs/r'
