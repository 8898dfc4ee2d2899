"""End the batch script of a job, so that its exit code never makes Slurm queue the job again.

Slurm queues a job again, or holds it, if the exit code of its batch script is in ``RequeueExit`` or
``RequeueExitHold`` of slurm.conf. It does so even if the job was submitted with ``--no-requeue``. A script
that a signal ends has no exit code: its job is FAILED and stays so.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from clusterrun.slurm_text.requeue_exit import may_requeue

# Slurm's programs wait 10 s for an answer (MessageTimeout).
ANSWER_SECONDS = 12.0


def end_batch_script(code: int, environment: Mapping[str, str]) -> int:
    """Return ``code``, or end this process by SIGTERM if Slurm would queue the job again for that code.

    Only the process that Slurm started as the batch script ends so. If Slurm does not answer, every code
    counts as listed.
    """
    if code == 0 or environment.get("SLURM_TASK_PID") != str(os.getpid()):
        return code
    from clusterrun.preflight.probes import run_program  # most jobs end with code 0

    answer = run_program.answer("scontrol", "show", "config", seconds=ANSWER_SECONDS)
    if may_requeue(answer.out, code):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
        os.kill(os.getpid(), signal.SIGTERM)
    return code
