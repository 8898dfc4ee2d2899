"""Two actors of Ray on each of two nodes, which train in a thread and hang: ``hanging_ray.py CASE PORT``.

Ray tells its workers their ranks by messages. The main thread of a worker serves, and a thread trains, as in
Ray Train.
"""

from __future__ import annotations

import os
import sys
import threading

import ray

EACH = 2


@ray.remote(num_cpus=1)
class Worker:
    def address(self) -> str:
        return os.uname().nodename

    def train(self, environment: dict[str, str], case: str) -> None:
        os.environ.update(environment)
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        import hanging_set_2

        threading.Thread(target=hanging_set_2.run, args=(case,), daemon=True).start()


def main() -> None:
    case, port = sys.argv[1:]
    ray.init(address="auto", log_to_driver=False)
    workers = [Worker.options(scheduling_strategy="SPREAD").remote() for _ in range(2 * EACH)]
    hosts = ray.get([worker.address.remote() for worker in workers])
    order = sorted(range(len(workers)), key=lambda place: hosts[place])
    common = {"WORLD_SIZE": str(len(workers)), "MASTER_ADDR": hosts[order[0]], "MASTER_PORT": port}
    common["MARKS"] = os.environ["MARKS"]
    for rank, place in enumerate(order):
        ray.get(workers[place].train.remote({**common, "RANK": str(rank)}, case))
    threading.Event().wait()


if __name__ == "__main__":
    main()
