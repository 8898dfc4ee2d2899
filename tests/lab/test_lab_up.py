def test_a_job_runs_on_all_nodes_of_the_shared_lab(lab):
    done = lab.exec(["srun", "-N4", "--gpus-per-node=8", "hostname"])
    assert (done.code, sorted(done.out.split())) == (0, ["n0001", "n0002", "n0003", "n0004"])
