from clusterrun.model.world import World, framework_environment


def test_frameworks_get_the_cpu_setting_and_the_size_of_the_world() -> None:
    assert framework_environment(World(("n1", "n2", "n3"), 2), 0) == {
        "ACCELERATE_USE_CPU": "true",
        "PL_TRAINER_NUM_NODES": "3",
        "PL_TRAINER_DEVICES": "2",
        "PL_TRAINER_ACCELERATOR": "cpu",
        "LT_NUM_NODES": "3",
        "LT_DEVICES": "2",
        "LT_ACCELERATOR": "cpu",
    }


def test_gpu_ranks_choose_their_own_device() -> None:
    assert framework_environment(World(("n1",), 8), 8) == {
        "PL_TRAINER_NUM_NODES": "1",
        "PL_TRAINER_DEVICES": "8",
        "LT_NUM_NODES": "1",
        "LT_DEVICES": "8",
    }
