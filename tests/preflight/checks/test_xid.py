"""Xid errors: found in the kernel's log, in lines of the driver's form; the worse and the fresher count."""

from __future__ import annotations

import pytest

from clusterrun.model.preflight_report import Grade
from clusterrun.preflight import registry
from clusterrun.preflight.checks import xid
from clusterrun.preflight.probes import kernel_log, nvidia_smi
from tests.preflight.checks.values import FAIL, WARN, answer, asked, blamed, nodes, verdicts

LINE_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
LINE_31 = "NVRM: Xid (PCI:0000:1b:00): 31, pid=2837, name=python, Ch 00000008, intr 00000000. MMU Fault"
LINE_63 = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping"
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"
FALLEN = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) has\\x0aNVRM: fallen off the bus and"
)


def reading(*xids: tuple[int, float], installed: int = 8, message: str = "") -> dict[str, object]:
    rows = [{"xid": number, "bus": "0000:9b:00", "ago": ago, "message": message} for number, ago in xids]
    return {"readable": True, "xids": rows, "installed": installed}


def test_lines_of_the_driver_are_found_among_all_others() -> None:
    log = [(100.0, "eth0: link up"), (90.0, LINE_79), (80.4, LINE_31), (70.0, LINE_63)]
    assert xid.of_lines(log) == [
        {"xid": 79, "bus": "0000:9b:00", "ago": 90, "message": "GPU has fallen off the bus."},
        {
            "xid": 31,
            "bus": "0000:1b:00",
            "ago": 80,
            "message": "pid=2837, name=python, Ch 00000008, intr 00000000. MMU Fault",
        },
        {
            "xid": 63,
            "bus": "0000:10:1c",
            "ago": 70,
            "message": "pid=1896, Row Remapper: New row marked for remapping",
        },
    ]


def test_errors_before_the_driver_was_reloaded_are_over() -> None:
    after = xid.of_lines([(90.0, LINE_79), (50.0, LOADED), (10.0, LINE_63)])
    assert [row["xid"] for row in after] == [63]


def test_a_gpu_that_fell_off_the_bus_without_an_xid_is_recognised() -> None:
    assert xid.of_lines([(5.0, FALLEN)]) == [{"xid": 79, "bus": "0000:b3:00.0", "ago": 5, "message": ""}]


AT_START = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\\x0a"
    "NVRM: fallen off the bus and is not responding to commands."
)
"""NVIDIA/NVSentinel#155, driver 570.158.01: the driver says that it is loaded only after that."""


def test_a_gpu_that_does_not_answer_at_driver_start_is_reported_until_a_reload() -> None:
    log = [(60.0, AT_START), (59.9, "NVRM: The NVIDIA probe routine failed for 1 device(s)."), (59.8, LOADED)]
    result = xid.of_lines(log)
    assert [(row["xid"], row["bus"]) for row in result] == [(79, "0000:b3:00.0")]
    assert xid.of_lines([*log, (10.0, LOADED)]) == []


def test_a_gpu_that_fell_off_the_bus_is_one_finding_from_two_lines() -> None:
    beside = "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."
    assert [row["bus"] for row in xid.of_lines([(9.0, LINE_79), (9.0, beside)])] == ["0000:9b:00"]


def test_the_line_of_an_older_driver_has_no_name_of_the_bus() -> None:
    assert [row["xid"] for row in xid.of_lines([(9.0, "NVRM: Xid (0000:03:00): 48, DBE")])] == [48]


def test_a_multi_line_journal_message_is_one_line() -> None:
    text = (
        "[ 1843.308145] gpu1 kernel: NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "                            NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "                            NVRM: fallen off the bus and is not responding to commands.\n"
        "[ 1843.439662] gpu1 kernel: NVRM: The NVIDIA probe routine failed for 1 device(s).\n"
    )
    lines = list(kernel_log.journal(text, 1900.0))
    assert len(lines) == 2
    assert [(row["xid"], row["bus"]) for row in xid.of_lines(lines)] == [(79, "0000:b3:00.0")]


@pytest.mark.parametrize(
    ("observed", "verdict", "message"),
    [
        ((79, 500_000), FAIL, "Xid 79 of GPU 0000:9b:00: the GPU has fallen off the bus (6 d ago)"),
        ((48, 7200), FAIL, "Xid 48 of GPU 0000:9b:00: an uncorrectable memory error (2 h ago)"),
        ((48, 90_000), WARN, "Xid 48 of GPU 0000:9b:00: an uncorrectable memory error (25 h ago)"),
        ((94, 30), WARN, "Xid 94 of GPU 0000:9b:00: a memory error that was contained (30 s ago)"),
    ],
)
def test_an_xid_counts_by_its_class_and_its_age(observed, verdict, message) -> None:
    assert verdicts(xid, nodes(2, reading(), bad=reading(observed))) == [("bad", verdict, message)]


def test_errors_of_programs_are_no_fault_of_a_node() -> None:
    assert verdicts(xid, {"n1": reading((13, 5), (31, 5), (43, 5), (45, 5), (69, 5))}) == []


@pytest.mark.parametrize(
    ("message", "verdicts_and_words"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", [FAIL]),
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", [FAIL]),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", [FAIL]),
        ("GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)", [FAIL]),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", [FAIL]),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", [WARN]),
        ("GPU recovery action changed", []),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", []),
    ],
)
def test_the_recovery_that_the_driver_requests_decides(message, verdicts_and_words) -> None:
    result = verdicts(xid, {"n1": reading((154, 60), message=message)})
    assert [verdict for _, verdict, _ in result] == verdicts_and_words


def test_an_nvlink_error_that_is_not_fatal_is_only_watched() -> None:
    fatal, harmless = "RLW_REMAP Fatal XC0 i0 Link 5 (0x4)", "NETIR_BER_EVENT Nonfatal XC0 i0 Link 5 (0x0)"
    assert blamed(xid, {"n1": reading((145, 60), message=fatal)}) == {"n1": FAIL}
    assert blamed(xid, {"n1": reading((149, 60), message=harmless)}) == {"n1": WARN}


def test_errors_that_only_need_watching_expire() -> None:
    assert blamed(xid, {"n1": reading((63, 3600))}) == {"n1": WARN}
    assert blamed(xid, {"n1": reading((63, 90_000))}) == {}


def test_many_errors_of_one_kind_are_one_finding() -> None:
    assert verdicts(xid, {"n1": reading((74, 900), (74, 600), (74, 300))}) == [
        ("n1", FAIL, "Xid 74 of GPU 0000:9b:00: an NVLink error (5 min ago, 3 times)")
    ]


def test_an_xid_may_belong_to_another_jobs_gpu() -> None:
    assert blamed(xid, {"n1": reading((79, 5))}, asked(gpus=4)) == {"n1": WARN}
    assert blamed(xid, {"n1": reading((79, 5), installed=0)}, asked(gpus=4)) == {"n1": FAIL}


def test_an_unreadable_log_has_no_finding() -> None:
    assert verdicts(xid, {"n1": {"readable": False, "xids": [], "installed": 8}}) == []


def test_the_age_that_counts_is_the_users() -> None:
    assert blamed(xid, {"n1": reading((48, 90_000))}, asked(limits=(("xid_hours", 48),))) == {"n1": FAIL}


def test_records_of_the_kernel_are_lines_with_their_age() -> None:
    text = f"3,1,5000000,-;first\n SUBSYSTEM=pci\n4,2,7500000,-,caller=T1;{LINE_79}\nnonsense\n"
    assert list(kernel_log.parsed(text, now=10.0)) == [(5.0, "first"), (2.5, LINE_79)]


def test_lines_of_the_journal_are_read_where_the_log_itself_is_closed() -> None:
    text = f"[    5.000000] gpu-12 kernel: first\n[ 1007.500000] gpu-12 kernel: {LINE_79}\n-- No entries --\n"
    assert list(kernel_log.journal(text, now=1010.0)) == [(1005.0, "first"), (2.5, LINE_79)]


@pytest.mark.parametrize("number", [46, 155, 156])
def test_errors_that_nvidia_answers_with_a_reset_are_unfit(number: int) -> None:
    assert blamed(xid, nodes(2, reading(), bad=reading((number, 60)))) == {"bad": FAIL}


@pytest.mark.parametrize(
    ("number", "recovery", "grade"),
    [
        (109, "None", WARN),  # mostly a program's fault: open-gpu-kernel-modules#1243
        (46, "None", WARN),
        (46, "Reset", FAIL),
        (46, "N/A", FAIL),
        (79, "None", FAIL),
    ],
)
def test_an_error_before_a_reset_is_a_warning_if_the_driver_asks_for_no_recovery(
    number: int, recovery: str, grade: Grade
) -> None:
    xml = "<nvidia_smi_log>" + "".join(
        f'<gpu id="00000000:{bus}:00.0"><gpu_recovery_action>{action}</gpu_recovery_action></gpu>'
        for bus, action in (("9B", recovery), ("1B", "None" if recovery == "Reset" else "Reset"))
    )
    gpu_reading = {"has_driver": True, **nvidia_smi.gpus(f"{xml}</nvidia_smi_log>")}
    findings = registry.findings(
        asked(gpus=2), {"n1": answer(gpus=gpu_reading, xid={**reading((number, 60)), "installed": 2})}, {}, {}
    )
    assert [entry.verdict for entry in findings["n1"] if entry.check == xid.NAME] == [grade]


NEEDS = "GPU recovery action changed from 0x{} (…) to 0x{} (…)"


@pytest.mark.parametrize(
    ("actions", "verdict"),
    [((1, 2), FAIL), ((2, 0), None), ((1, 0, 3), WARN), ((3, 1, 0, 1), FAIL), ((0,), None)],
)
def test_the_last_requested_recovery_counts(actions, verdict) -> None:
    steps = zip((0, *actions), actions, strict=False)
    log = [
        (100.0 - i, f"NVRM: Xid (PCI:0000:9b:00): 154, {NEEDS.format(*step)}") for i, step in enumerate(steps)
    ]
    result = blamed(xid, {"n1": {"readable": True, "xids": xid.of_lines(log), "installed": 8}})
    assert result == ({"n1": verdict} if verdict else {})


SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): {}"


def test_a_fatal_error_of_an_nvswitch_is_unfit_and_another_is_none() -> None:
    fatal, harmless, more = (
        "24007, Fatal, Link 30 sourcetrack timeout error",
        "12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        "24007, Severity 1 Engine instance 60 Sub-engine instance 00",
    )
    log = [(60.0, SWITCH.format(arguments)) for arguments in (harmless, fatal, more)]
    ill = {"readable": True, "xids": xid.of_lines(log), "installed": 8}
    assert verdicts(xid, nodes(2, reading(), bad=ill)) == [
        ("bad", FAIL, "SXid 24007 of NVSwitch 0000:05:00.0: Link 30 sourcetrack timeout error (60 s ago)")
    ]
    assert blamed(xid, {"n1": ill}, asked(gpus=4)) == {"n1": WARN}
    assert xid.of_lines([*log, (5.0, LOADED)]) == []
    link = xid.of_lines([(60.0, SWITCH.format("20034, Fatal, Link 30 LTSSM Fault Up"))])
    assert blamed(xid, {"n1": {"readable": True, "xids": link, "installed": 8}}) == {"n1": WARN}


CATALOGUE = {
    "RESET_GPU": (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    "WORKFLOW_XID_48": (48,),
    "WORKFLOW_NVLINK_ERR": (74,),
    "WORKFLOW_NVLINK5_ERR": (144, 145, 146, 147, 148, 149, 150),
    "RESTART_BM": (79,),
    "RESTART_VM": (151,),
    "CHECK_MECHANICALS": (54,),
    "UPDATE_SWFW": (78,),
    "WORKFLOW_XID_45": (45,),
    "CHECK_UVM": (159,),
    "CONTACT_SUPPORT": (142,),
    "IGNORE": (37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161),
    "RESTART_APP": (
        *(
            8,
            11,
            13,
            25,
            31,
            32,
            39,
            40,
            41,
            60,
            68,
            69,
            70,
            71,
            72,
            75,
            76,
            77,
            80,
            *range(82, 87),
            88,
            89,
            94,
        ),
        *(*range(96, 106), *range(126, 136), 139),
    ),
}
"""The immediate action in NVIDIA's catalogue for Ampere and newer GPUs (October 2025), of numbers in use."""
ALLOWED = {
    "RESET_GPU": {xid.RESET},
    "WORKFLOW_XID_48": {xid.RESET},
    "WORKFLOW_NVLINK_ERR": {xid.RESET},
    "WORKFLOW_NVLINK5_ERR": {xid.RESET},
    "RESTART_BM": {xid.REBOOT},
    "RESTART_VM": {xid.REBOOT},
    "CHECK_MECHANICALS": {xid.REBOOT},
}


@pytest.mark.parametrize(
    ("action", "number"), [(action, number) for action, numbers in CATALOGUE.items() for number in numbers]
)
def test_every_number_of_nvidias_catalogue_has_the_class_of_its_action(action, number) -> None:
    assert xid.CLASSES.get(number, ("",))[0] in ALLOWED.get(action, {"", xid.MONITOR})


def test_an_error_that_makes_a_node_unfit_has_its_own_remedy() -> None:
    (_, result), *_ = xid.judge(asked(), {"n1": reading((79, 60))})
    assert result.remedy.startswith("switch the node off and on")
    (_, result), *_ = xid.judge(asked(), {"n1": reading((95, 60))})
    assert result.remedy == xid.REMEDIES[xid.RESET]
    assert all(number in xid.CLASSES for number in xid.OWN_REMEDIES)


@pytest.mark.parametrize(("action", "verdict"), [("0x5", FAIL), ("0x6", FAIL), ("0x7", FAIL)])
def test_newer_recovery_actions_are_known_by_their_numbers(action, verdict) -> None:
    message = f"GPU recovery action changed from 0x0 (None) to {action} (whatever its words)"
    assert [value for _, value, _ in verdicts(xid, {"n1": reading((154, 60), message=message)})] == [verdict]
