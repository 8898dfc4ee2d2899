"""Judges of what nvidia-smi said: what makes a node unfit, what is a warning, and what says nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterrun.preflight import registry
from clusterrun.preflight.checks import gpus, nvlink
from clusterrun.preflight.checks.gpu_health import CLOCKS, DRIVER, ERRORS, FABRIC, MEMORY, PCIE
from clusterrun.preflight.probes.run_program import ProgramAnswer
from clusterrun.preflight.tasks import TorchStarted
from tests.preflight.checks.values import ASKED, FAIL, WARN, answer, asked, blamed, gpu, nodes, verdicts
from tests.preflight.checks.values import gpus as reading

OF_GPUS = (gpus, MEMORY, ERRORS, PCIE, CLOCKS, FABRIC, DRIVER)


@pytest.mark.parametrize("check", OF_GPUS, ids=lambda check: check.NAME)
def test_healthy_nodes_are_passed_over_in_silence(check) -> None:
    assert verdicts(check, nodes(4, reading())) == []


@pytest.mark.parametrize("check", OF_GPUS, ids=lambda check: check.NAME)
def test_machines_without_any_nvidia_driver_are_not_spoken_of(check) -> None:
    assert verdicts(check, nodes(3, {"has_driver": False})) == []


@pytest.mark.parametrize(
    ("ill", "message"),
    [
        (reading(count=7), "the driver sees 7 of 8 GPUs"),
        ({"has_driver": False}, "there is no nvidia-smi here, while other nodes have it"),
        (
            {
                "has_driver": True,
                "code": 15,
                "message": "Unable to determine the device handle: GPU is lost.",
            },
            "nvidia-smi: Unable to determine the device handle: GPU is lost.",
        ),
        ({"has_driver": True, "code": 6}, "nvidia-smi: exit code 6, no GPU listed"),
        ({"has_driver": True, "code": 0, "gpus": []}, "nvidia-smi: exit code 0, no GPU listed"),
    ],
)
def test_a_node_without_its_gpus_is_unfit(ill, message) -> None:
    assert verdicts(gpus, nodes(2, reading(), bad=ill)) == [("bad", FAIL, message)]


def test_additional_gpus_are_no_finding() -> None:
    assert verdicts(gpus, nodes(2, reading(count=8)), asked(gpus=4)) == []


def test_instances_of_a_divided_gpu_count_each() -> None:
    divided = {**reading(), "gpus": [gpu(mig="Enabled", instances=7), gpu()]}
    assert verdicts(gpus, {"n1": divided}) == []
    assert verdicts(gpus, {"n1": divided}, asked(gpus=9)) == [("n1", FAIL, "the driver sees 8 of 9 GPUs")]


@pytest.mark.parametrize(
    ("used", "processes", "verdict", "message"),
    [
        (
            40960,
            [{"pid": 77, "command": "/home/bob/venv/bin/python", "user": "bob", "used": 40400}],
            FAIL,
            "GPU 3: 40960 of 81559 MiB in use (50%, limit 30%) by python pid 77 of bob 40400 MiB",
        ),
        (
            40960,
            [],
            WARN,
            "GPU 3: 40960 of 81559 MiB in use (50%, limit 30%), by no process that can be seen",
        ),
        (
            4096,
            [{"pid": 8, "command": "/usr/bin/nvidia-cuda-mps-server", "used": 30}],
            WARN,
            "GPU 3: 4096 of 81559 MiB in use (5%, limit 2%), by no process that can be seen",
        ),
    ],
)
def test_used_memory_is_reported_with_its_owner(used, processes, verdict, message) -> None:
    ill = reading(used=used, processes=processes)
    assert verdicts(MEMORY, nodes(2, reading(), bad=ill)) == [("bad", verdict, message)]


def test_a_leftover_program_is_reported_at_any_size() -> None:
    remaining = reading(used=500, processes=[{"pid": 9, "command": "python", "kind": "C", "used": 498}])
    assert verdicts(MEMORY, {"n1": remaining}) == [
        ("n1", WARN, "GPU 3: 500 of 81559 MiB in use (1%) by python pid 9 498 MiB")
    ]
    desktop = reading(used=500, processes=[{"pid": 9, "command": "/usr/bin/firefox", "kind": "G", "used": 9}])
    assert verdicts(MEMORY, {"n1": desktop}) == []


def test_memory_of_firmware_and_hypervisor_is_no_finding() -> None:
    assert verdicts(MEMORY, {"n1": reading(memory=8192, used=300)}) == []
    virtual = {"virtualization": "VGPU", "memory": 40960, "used": 2600}
    assert verdicts(MEMORY, {"n1": reading(**virtual)}) == []
    assert blamed(MEMORY, {"n1": reading(**{**virtual, "used": 9000})}) == {"n1": WARN}


def test_a_process_on_a_gpu_that_reports_no_sizes_is_named() -> None:
    program = reading(memory=None, used=None, processes=[{"pid": 9, "command": "python", "kind": "C"}])
    assert verdicts(MEMORY, {"n1": program}) == [("n1", WARN, "GPU 3: memory in use by python pid 9")]


@pytest.mark.parametrize(
    ("process", "grade"),
    [
        ({"command": "python", "kind": "C", "used": 30000}, FAIL),
        ({"command": "python", "kind": "M+C", "used": 30000}, FAIL),
        ({"command": "python", "kind": "C", "used": None}, FAIL),  # in another container
        ({"command": "python", "kind": "C", "used": 900}, WARN),  # the rest is page cache of a NUMA node
        ({"command": "/usr/bin/chrome", "kind": "C+G", "used": 30000}, WARN),
        ({"command": "/usr/lib/xorg/Xorg", "kind": "G", "used": 30000}, WARN),
    ],
)
def test_only_memory_of_compute_processes_makes_a_node_unfit(process, grade) -> None:
    assert blamed(MEMORY, {"n1": reading(used=31000, processes=[{"pid": 9, **process}])}) == {"n1": grade}


def test_memory_in_use_on_gpus_of_other_jobs_is_not_ours() -> None:
    busy = {**reading(used=80000), "visible": ["0", "1"]}
    assert blamed(MEMORY, {"n1": busy}) == {}
    assert blamed(MEMORY, {"n1": {**busy, "visible": ["2", "3"]}}) == {"n1": WARN}
    assert blamed(MEMORY, {"n1": {**busy, "visible": ["GPU-3"]}}) == {"n1": WARN}


def test_the_limits_of_memory_are_the_users() -> None:
    busy = {"n1": reading(used=40960)}
    assert blamed(MEMORY, busy, asked(limits=(("gpu_memory_fail", 0.6),))) == {"n1": WARN}
    assert blamed(MEMORY, busy, asked(limits=(("gpu_memory_warn", 0.6),))) == {}


@pytest.mark.parametrize(
    ("ill", "verdict", "message"),
    [
        ({"uncorrected": 5}, FAIL, "GPU 3: 5 uncorrected memory errors since the driver's start (limit 0)"),
        ({"rows_failed": "Yes"}, FAIL, "GPU 3: a row of memory could not be remapped"),
        ({"sram_exceeded": "Yes"}, FAIL, "GPU 3: more uncorrected SRAM errors than NVIDIA allows"),
        ({"rows_pending": "Yes"}, WARN, "GPU 3: a row of memory waits for a reset to be remapped"),
        ({"pages_pending": "Yes"}, WARN, "GPU 3: a page of memory waits for a reset to be retired"),
        ({"channel_pending": "Yes"}, WARN, "GPU 3: a channel of memory waits for a reset to be repaired"),
        ({"recovery": "Reboot"}, FAIL, "GPU 3: the driver asks for: Reboot"),
        ({"recovery": "Drain P2P"}, WARN, "GPU 3: the driver asks for: Drain P2P"),
        ({"reset": "Yes"}, FAIL, "GPU 3: the driver asks for: Reset"),
        (
            {"corrected": 10001},
            WARN,
            "GPU 3: 10001 corrected memory errors since the driver's start (limit 10000)",
        ),
    ],
)
def test_errors_of_a_gpu_are_named_with_the_gpu(ill, verdict, message) -> None:
    assert verdicts(ERRORS, nodes(2, reading(), bad=reading(**ill))) == [("bad", verdict, message)]


def test_an_uncorrected_error_is_a_warning_if_the_driver_needs_no_recovery() -> None:
    assert blamed(ERRORS, {"n1": reading(uncorrected=1, recovered=True)}) == {"n1": WARN}
    assert blamed(ERRORS, {"n1": reading(uncorrected=1, recovered=True, rows_failed="Yes")}) == {"n1": FAIL}


def test_corrected_errors_are_no_finding() -> None:
    assert verdicts(ERRORS, {"n1": reading(corrected=10000)}) == []


def test_lost_lanes_are_a_finding_and_a_sleeping_generation_is_none() -> None:
    assert verdicts(PCIE, {"n1": reading(width=8, generation=1)}) == [
        ("n1", WARN, "GPU 3: PCIe has 8 lanes of 16")
    ]
    assert verdicts(PCIE, {"n1": reading(width=4)}) == [("n1", FAIL, "GPU 3: PCIe has 4 lanes of 16")]


def test_lanes_that_all_nodes_lack_are_how_they_are_built() -> None:
    narrow = reading(width=8)
    assert verdicts(PCIE, nodes(3, narrow)) == []
    assert verdicts(PCIE, nodes(3, reading(), bad=narrow)) == [("bad", WARN, "GPU 3: PCIe has 8 lanes of 16")]


def test_lanes_and_limits_of_another_model_are_not_compared() -> None:
    rows = [gpu(name="Tesla T4", width=8, generation_most=3, watts_most=70) for _ in range(8)]
    readings = nodes(4, reading(), other={**reading(), "gpus": rows})
    assert verdicts(PCIE, readings) == []
    assert verdicts(CLOCKS, readings) == []
    for row in rows:
        row["ecc"] = "Disabled"
    for of_node in readings.values():
        of_node["gpus"] = [{"ecc": "Enabled", **row} for row in of_node["gpus"]]
    ((node, _, message),) = verdicts(DRIVER, readings)
    assert (node, "the kind of GPU is Tesla T4" in message) == ("other", True)


def one_machine(*widths: int) -> dict[str, Any]:
    return {**reading(), "gpus": [gpu(uuid=f"GPU-{i}", width=width) for i, width in enumerate(widths)]}


@pytest.mark.parametrize(
    "widths",
    [(4,), (1,), (16, 4), (16, 16, 4), (16, 8, 16, 8), (8, 8, 8, 8), (8,) * 8, (4,) * 8, (16, 8, 8, 4)],
)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_slots_of_workstations_and_clouds_are_no_lost_lanes(widths: tuple[int, ...], count: int) -> None:
    assert verdicts(PCIE, nodes(count, one_machine(*widths))) == []


@pytest.mark.parametrize(
    "names, ours",
    [
        (["3"], [3]),
        (["0", "3"], [0, 3]),
        (["GPU-3a5f"], [3]),  # the beginning of a UUID
        (["GPU-3a5f0000-1111"], [3]),
        (["MIG-GPU-3a5f0000-1111/1/0"], [3]),
        (["MIG-77777777-1111"], [1, 3]),  # an instance that the driver does not tell of: of those divided
        (["GPU-"], [0, 1, 2, 3]),
        ([""], [0, 1, 2, 3]),
        (["NoDevFiles"], [0, 1, 2, 3]),
        (["GPU-99"], [0, 1, 2, 3]),
    ],
)
def test_the_jobs_gpus_are_the_gpus_of_its_ranks(names: list[str], ours: list[int]) -> None:
    uuids = ["GPU-0a", "GPU-1a", "GPU-2a", "GPU-3a5f0000-1111"]
    remote = [{"uuid": uuid, "mig": "Enabled" if uuid[4] in "13" else "Disabled"} for uuid in uuids]
    assert [index for index, _ in gpus.job_gpus({"visible": names, "gpus": remote})] == ours


def test_only_a_generation_below_the_others_is_named() -> None:
    slower = reading(generation_most=4)
    assert verdicts(PCIE, nodes(3, reading(), bad=slower)) == [
        ("bad", WARN, "PCIe reaches generation 4 here, 5 on the other nodes")
    ]
    assert verdicts(PCIE, nodes(3, slower, newer=reading())) == []
    assert verdicts(PCIE, nodes(1, reading(), other=slower)) == []


@pytest.mark.parametrize(
    ("reasons", "verdict", "message"),
    [
        (
            ["hw_slowdown", "hw_thermal_slowdown"],
            FAIL,
            "GPU 3: the GPU is too hot (hw_thermal_slowdown, hw_slowdown, 89 °C)",
        ),
        (
            ["hw_power_brake_slowdown"],
            FAIL,
            "GPU 3: the machine's power brake is on (hw_power_brake_slowdown, 89 °C)",
        ),
        (
            ["sw_thermal_slowdown"],
            WARN,
            "GPU 3: the driver slows the clocks because of heat (sw_thermal_slowdown, 89 °C)",
        ),
    ],
)
def test_the_reason_for_low_clocks_is_named(reasons, verdict, message) -> None:
    ill = reading(slowed=reasons, temperature=89)
    assert verdicts(CLOCKS, nodes(2, reading(), bad=ill)) == [("bad", verdict, message)]


def test_one_sample_of_an_idle_gpu_is_a_warning() -> None:
    ill = reading(slowed=["hw_slowdown"], temperature=31, idle=True)
    message = "GPU 3: the hardware slows the clocks (hw_slowdown, 31 °C)"
    assert verdicts(CLOCKS, nodes(2, reading(), bad=ill)) == [("bad", WARN, message)]


def test_a_power_limit_below_the_others_is_a_warning() -> None:
    capped = reading(watts_most=500)
    assert verdicts(CLOCKS, nodes(3, reading(), bad=capped)) == [
        ("bad", WARN, "the power limit is 500 W here, 700 W on the other nodes")
    ]
    assert verdicts(CLOCKS, nodes(3, capped)) == []
    assert verdicts(CLOCKS, nodes(3, reading(), bad=reading(watts_most=690))) == []


def test_a_gpu_outside_the_fabric_cannot_use_nvlink() -> None:
    assert verdicts(FABRIC, nodes(2, reading(), bad=reading(fabric="In Progress"))) == [
        ("bad", FAIL, "GPU 3 has not joined the NVSwitch fabric: In Progress")
    ]
    assert blamed(FABRIC, {"n1": reading(fabric_status="Insufficient Resources")}) == {"n1": FAIL}
    assert blamed(FABRIC, {"n1": reading(fabric="", fabric_status="")}) == {}


def test_a_different_driver_or_gpu_model_on_one_node_is_named() -> None:
    assert verdicts(DRIVER, nodes(3, reading(), bad=reading(driver="535.104.05"))) == [
        ("bad", WARN, "the NVIDIA driver is 535.104.05; it is 550.54.15 on 3 of 4 nodes")
    ]
    other = {**reading(), "gpus": [gpu(name="NVIDIA A100-SXM4-80GB")] * 8}
    assert verdicts(DRIVER, nodes(3, reading(), bad=other)) == [
        ("bad", WARN, "the kind of GPU is NVIDIA A100-SXM4-80GB; it is NVIDIA H100 80GB HBM3 on 3 of 4 nodes")
    ]


HEALTHY_LINKS = "".join(f"\t Link {i}: 26.562 GB/s\n" for i in range(18))
NO_ERRORS = "\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: 0\n\t Link 0: CRC Errors: 0\n\n"


def links(*each: str, errors: str = NO_ERRORS) -> object:
    status = "".join(
        f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})\n{value}" for i, value in enumerate(each)
    )
    counted = "".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})\n{errors}" for i in range(len(each)))
    return nvlink.of_text(status, counted)


def test_made_up_answers_of_nvidia_smi_nvlink_are_parsed() -> None:
    one_down = HEALTHY_LINKS.replace("Link 2: 26.562 GB/s", "Link 2: <inactive>")
    replays = "\t Link 0: Replay Errors: 12\n\t Link 0: CRC Flit Errors: 3\n"
    assert links(one_down, errors=replays) == [
        {
            "gpu": 0,
            "uuid": "GPU-0",
            "model": "NVIDIA H100 80GB HBM3",
            "speeds": [26.562, 26.562, 0.0, *[26.562] * 15],
            "errors": 15,
        }
    ]
    assert (
        nvlink.of_text("GPU 0: NVIDIA L4 (UUID: GPU-0)\nDevice does not have or support Nvlink\n", "") == []
    )


def test_a_gpu_with_fewer_active_links_than_the_others_is_unfit() -> None:
    one_down = HEALTHY_LINKS.replace("Link 2: 26.562 GB/s", "Link 2: <inactive>")
    healthy = links(*[HEALTHY_LINKS] * 8)
    assert verdicts(nvlink, {"n1": healthy, "n2": healthy}) == []
    ill = {"n1": healthy, "n2": links(*[HEALTHY_LINKS] * 7, one_down)}
    assert verdicts(nvlink, ill) == [("n2", FAIL, "GPU 7 has 17 active NVLinks, 18 is usual")]
    assert verdicts(nvlink, {"n1": links(one_down, one_down)}) == []
    assert verdicts(nvlink, {"n1": links(one_down, HEALTHY_LINKS)}) == [
        ("n1", FAIL, "GPU 0 has 17 active NVLinks, 18 is usual")
    ]


def test_gpus_are_compared_with_gpus_of_their_model() -> None:
    h100 = links(*[HEALTHY_LINKS] * 8)
    a100 = [{**row, "model": "NVIDIA A100-SXM4-80GB", "speeds": [25.0] * 12} for row in h100]
    assert verdicts(nvlink, nodes(6, h100, old1=a100, old2=a100)) == []
    broken = [*a100[:7], {**a100[7], "speeds": [25.0] * 11}]
    assert blamed(nvlink, nodes(6, h100, old1=a100, old2=broken)) == {"old2": FAIL}


def test_two_cards_without_a_bridge_are_a_warning() -> None:
    none = "NVML: Unable to retrieve NVLink information as all links are inActive\n"
    assert blamed(nvlink, {"n1": links(*[HEALTHY_LINKS] * 6, none, none)}) == {"n1": WARN}


@pytest.mark.parametrize("mine, rows", [("0,1", [0, 1]), ("GPU-5", [5]), ("", range(8))])
def test_only_links_of_the_jobs_gpus_are_read(monkeypatch, mine, rows) -> None:
    text = "".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})\n{HEALTHY_LINKS}" for i in range(8))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mine)
    monkeypatch.setattr(nvlink, "answer", lambda *argv, seconds: ProgramAnswer(0, text, ""))
    assert [row["gpu"] for row in nvlink.probe(ASKED)] == list(rows)


def test_a_gpu_with_only_inactive_links_is_unfit_unless_most_have_none() -> None:
    none = "NVML: Unable to retrieve NVLink information as all links are inActive\n"  # leptonai/gpud#1085
    assert verdicts(nvlink, {"n1": links(*[HEALTHY_LINKS] * 7, none)}) == [
        ("n1", FAIL, "GPU 7: no active NVLink, 18 is usual")
    ]
    assert verdicts(nvlink, {"n1": links(none, none)}) == []
    assert verdicts(nvlink, {"n1": links(*[HEALTHY_LINKS] * 2, none, none)}) == []


BLACKWELL = (
    "\t Link 0: Tx packets: 36140749276\n\t Link 0: Malformed packet Errors: 0\n\t Link 0: Rx Errors: 0\n"
    "\t Link 0: Link recovery successful events: 505\n\t Link 0: Link recovery failed events: 0\n"
    "\t Link 0: Total link recovery events: 505\n\t Link 0: Effective BER: 15e-255\n"
    "\t Link 0: Symbol Errors: 0\n\t Link 0: FEC Errors - 0: 36140749276\n\t Link 0: Raw Errors Lane 0: 82\n"
)
"""Names as drivers from 570 on print them; a link with 505 recoveries failed (marin-community/marin#9086)."""


def test_newer_drivers_error_counts_count_without_corrected_words() -> None:
    healthy = BLACKWELL.replace("505", "0")
    assert verdicts(nvlink, {"n1": links(HEALTHY_LINKS, errors=healthy)}) == []
    assert verdicts(nvlink, {"n1": links(HEALTHY_LINKS, errors=BLACKWELL)}) == [
        ("n1", WARN, "505 NVLink errors of GPU 0 (limit 100)")
    ]


def test_slow_links_and_errors_of_links_are_warnings() -> None:
    slow = HEALTHY_LINKS.replace("Link 2: 26.562", "Link 2: 1.562")
    assert verdicts(nvlink, {"n1": links(slow, HEALTHY_LINKS)}) == [
        ("n1", WARN, "1 NVLinks of GPU 0 are slower than 26.562 GB/s")
    ]
    many = links(HEALTHY_LINKS, errors="\t Link 0: Replay Errors: 101\n")
    assert verdicts(nvlink, {"n1": many}) == [("n1", WARN, "101 NVLink errors of GPU 0 (limit 100)")]
    assert verdicts(nvlink, {"n1": many}, asked(limits=(("link_errors", 200),))) == []


def test_nothing_is_reported_about_unrequested_gpus() -> None:
    from clusterrun.preflight.registry import check_names

    of_gpus = {"gpus", "amd-gpus", "xgmi", "intel-gpus", "xid", "nvlink", "dcgm"}
    assert set(check_names(ASKED)) - set(check_names(asked(gpus=0))) == of_gpus


def test_gpus_outside_the_cgroup_are_counted_separately() -> None:
    remote = [gpu(uuid=f"GPU-{i}", closed=i < 4) for i in range(8)]
    held = {**reading(), "gpus": remote}
    message = "the job may open 4 of the 8 GPUs, not 8: a cgroup closes the others"
    assert verdicts(gpus, {"n1": held}) == [("n1", FAIL, message)]
    assert verdicts(gpus, {"n1": held}, asked(gpus=4)) == []
    ours = [index for index, _ in gpus.job_gpus({**held, "visible": ["0", "3"]})]
    assert ours == [4, 7]  # CUDA counts those that it may open
    assert [index for index, _ in gpus.job_gpus(held)] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("minors", "allowed", "closed"),
    [
        ([0, 1, 2, 3], {0, 1, 2, 3}, set()),
        ([0, 1, 2, 3], {1, 3}, {0, 2}),
        ([3, 2, 1, 0], {1, 3}, {1, 3}),  # the driver's order is not that of the files
        ([0, 1], set(), set()),  # not one: the files lie elsewhere, and nothing is known
        ([None, 0], {0}, set()),
    ],
)
def test_the_kernel_names_the_jobs_device_files(minors, allowed, closed) -> None:
    remote = [{} if minor is None else {"minor": float(minor)} for minor in minors]
    may = lambda path, mode: path in {f"/dev/nvidia{minor}" for minor in allowed}  # noqa: E731
    assert gpus.closed_devices(remote, may=may) == closed


@pytest.mark.parametrize(
    ("seconds", "mode", "grade"), [(28.0, "Disabled", WARN), (28.0, "Enabled", None), (1.2, "Disabled", None)]
)
def test_a_driver_that_loads_slowly_without_persistence_mode_is_a_warning(seconds, mode, grade) -> None:
    gpus_of_node = [gpu(persistence=mode)] * 8
    slow = {**reading(), "seconds": seconds, "gpus": gpus_of_node}
    assert blamed(DRIVER, nodes(1, slow, n2=slow)) == ({} if grade is None else {"n1": grade, "n2": grade})


def test_gpus_that_torch_opens_are_judged_on_mixed_cards() -> None:
    """CUDA's number 0 is the fast card. nvidia-smi's number 0 is the display card, which is in use."""
    compute = {"pid": 9, "kind": "C", "command": "/usr/bin/python", "used": 1900}
    display = gpu(name="NVIDIA GeForce GT 1030", uuid="GPU-d", memory=2000, used=1900, processes=[compute])
    fast = gpu(name="NVIDIA GeForce RTX 4090", uuid="GPU-f")
    reading = {"has_driver": True, "code": 0, "visible": ["0"], "gpus": [display, fast]}
    one_gpu = asked(gpus=1, ranks=1)

    def failed(*uuids: str) -> list[str]:
        answers = {"n1": answer(gpus=json.loads(json.dumps(reading)))}
        warm = {"n1": TorchStarted(True, 1.0, "", "nccl", 1, uuids=uuids)}
        findings = registry.findings(one_gpu, answers, warm, {})
        return [finding.check for finding in findings.get("n1", ()) if finding.verdict is FAIL]

    assert failed("GPU-f") == []
    assert failed() == ["gpu-memory"]  # an old torch: the numbers are all that is known
    assert failed("GPU-instance") == ["gpu-memory"]  # an instance of a divided GPU


@pytest.mark.parametrize(
    ("mode", "grades"), [("Default", []), ("Exclusive_Process", []), ("Prohibited", [FAIL] * 8), ("", [])]
)
def test_a_gpu_whose_compute_mode_prohibits_programs_fails(mode, grades) -> None:
    prohibited = reading()
    for card in prohibited["gpus"]:
        card["compute_mode"] = mode
    findings = verdicts(DRIVER, {"n1": prohibited})
    assert [grade for _, grade, _ in findings] == grades


def test_a_node_with_another_compute_mode_is_named() -> None:
    other = reading()
    for card in other["gpus"]:
        card["compute_mode"] = "Exclusive_Process"
    usual = reading()
    for card in usual["gpus"]:
        card["compute_mode"] = "Default"
    ((node, grade, message),) = verdicts(DRIVER, nodes(3, usual, bad=other))
    assert (node, grade) == ("bad", WARN)
    assert message == "the compute mode of the GPUs is Exclusive_Process; it is Default on 3 of 4 nodes"


def rack(domain: str, clique: str) -> dict[str, Any]:
    node = reading()
    for card in node["gpus"]:
        card.update(domain=domain, clique=clique)
    return node


def test_nodes_of_one_nvlink_domain_with_other_cliques_are_a_warning() -> None:
    """Between cliques GPUs cannot use NVLink, though their switches could (NVIDIA IMEX)."""
    ((node, grade, message),) = verdicts(FABRIC, nodes(3, rack("d-1", "1"), bad=rack("d-1", "2")))
    assert (node, grade) == ("bad", WARN)
    assert message == "the NVLink clique of domain d-1 is 2; it is 1 on 3 of 4 nodes"


@pytest.mark.parametrize(
    "readings",
    [
        nodes(4, rack("d-1", "1")),
        {"n1": rack("d-1", "1"), "n2": rack("d-2", "1"), "n3": rack("d-2", "1")},
        nodes(3, rack("00000000-0000-0000-0000-000000000000", "0")),
    ],
)
def test_nodes_of_one_clique_or_of_several_domains_are_healthy(readings) -> None:
    assert verdicts(FABRIC, readings) == []
