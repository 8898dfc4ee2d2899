"""The NVSwitch fabric: whether every GPU of this job has joined it; without that NCCL cannot use NVLink."""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import gpus
from clusterrun.preflight.tasks import Asked, Findings, Readings
from clusterrun.preflight.untrusted import text

NAME = "fabric"
OF = gpus.NAME
_LOOK = "nvidia-smi -q -i {} on the node says under Fabric, Health what is wrong; tell its administrators"
_REMEDY = "systemctl restart nvidia-fabricmanager on the node; if that does not help: reboot"


def judge(request: Asked, readings: Readings) -> Findings:
    """Fail where a GPU with a fabric has not joined it, warn where this is ill; without one nothing."""
    for node, reading in readings.items():
        for index, gpu in gpus.given(reading):
            state, status = text(gpu, "fabric"), text(gpu, "fabric_status")
            if state in ("Not Started", "In Progress"):
                said = f"GPU {index} has not joined the NVSwitch fabric: {state}"
                yield node, Finding(NAME, Grade.FAIL, said, _REMEDY)
            elif state == "Completed" and status not in ("Success", ""):
                said = f"GPU {index} could not join the NVSwitch fabric: {status}"
                yield node, Finding(NAME, Grade.FAIL, said, _REMEDY)
            elif (health := text(gpu, "fabric_health")) not in ("Healthy", ""):
                said = f"the driver calls the NVSwitch fabric of GPU {index} {health}"
                yield node, Finding(NAME, Grade.WARN, said, _LOOK.format(index))
