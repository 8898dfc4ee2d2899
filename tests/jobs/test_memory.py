import pytest

pytest.importorskip("torch")

import memory


@pytest.mark.parametrize(
    ("text", "size"), [("800M", 800 << 20), ("1.5G", 3 << 29), ("7", 7), ("2kB", 2048), ("1GiB", 1 << 30)]
)
def test_a_size_is_read_as_people_write_it(text, size) -> None:
    assert memory.size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1M", "1X", "1 000M"])
def test_a_wrong_size_is_refused(text) -> None:
    with pytest.raises(ValueError, match="is not a size: write it as 800M"):
        memory.size(text)


def machine(folder, available, group_limit):
    """Write the files of a fake kernel: free memory in MiB, and the limit of a group above ours."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroups / "job/step").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available * 1024} kB\n")
    (proc / "self/status").write_text(f"VmHWM: {9 * 1024} kB\nVmRSS: {100 * 1024} kB\n")
    (proc / "self/cgroup").write_text("0::/job/step\n")
    (cgroups / "job/step/memory.max").write_text("max\n")
    (cgroups / "job/memory.max").write_text(f"{group_limit}\n")
    (cgroups / "job/memory.current").write_text(f"{200 << 20}\n")
    return proc, cgroups


@pytest.mark.parametrize(
    ("available", "group_limit", "ranks", "mebibytes"),
    [(1000, "max", 1, 900), (1000, "max", 4, 300), (1000, 700 << 20, 1, 500), (100, 700 << 20, 2, 140)],
)
def test_the_limit_is_the_memory_of_a_rank_and_its_share_of_free_memory(
    tmp_path, available, group_limit, ranks, mebibytes
) -> None:
    assert memory.limit(ranks, *machine(tmp_path, available, group_limit)) == mebibytes << 20


def test_a_limit_of_the_first_version_of_control_groups_counts_on_a_fake_machine(tmp_path) -> None:
    proc, cgroups = machine(tmp_path, available=1000, group_limit="max")
    (proc / "self/cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/slurm/job_7\n0::/\n")
    group = cgroups / "memory/slurm/job_7"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{300 << 20}\n")
    (group / "memory.usage_in_bytes").write_text(f"{200 << 20}\n")
    assert memory.limit(1, proc, cgroups) == 180 << 20


def test_the_peak_of_some_work_is_not_that_of_the_work_before() -> None:
    def work(mebibytes):
        return lambda: bytearray(b"x") * (mebibytes << 20)

    large = memory.peak_of(work(200))
    small = memory.peak_of(work(20))
    assert 170 << 20 < large - small < 190 << 20
