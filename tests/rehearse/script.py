"""A training script that resumes to the bit: what planted bugs are patches of. It knows no launcher."""

import contextlib
import glob
import os
import random
import signal
import sys

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FOLDER, KEEP, EVERY, EPOCHS, BATCH = "checkpoints", 2, 6, 16, 4
RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Points(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(40, 8, generator=generator)
        self.y = self.x.sum(1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.01 * numpy.random.randn() + 0.01 * random.random(), self.y[index]


def random_states():
    return {"python": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state()}


def restore_random(states):
    random.setstate(states["python"])
    numpy.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])


def gathered(value):
    if SIZE == 1:
        return [value]
    result = [None] * SIZE
    dist.all_gather_object(result, value)
    return result


def barrier():
    if SIZE > 1:
        dist.barrier()


def save(state, step):
    os.makedirs(FOLDER, exist_ok=True)
    path = f"{FOLDER}/step-{step:06d}.pt"
    if RANK == 0:
        try:
            torch.save(state, path + ".part")
            os.replace(path + ".part", path)
        except (OSError, RuntimeError) as error:
            print(f"not saved: {error}", file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                os.remove(path + ".part")
        for old in sorted(glob.glob(f"{FOLDER}/step-*.pt"))[:-KEEP]:
            os.remove(old)
    barrier()


def newest():
    for path in sorted(glob.glob(f"{FOLDER}/step-*.pt"), reverse=True):
        try:
            return torch.load(path, weights_only=False)
        except Exception as error:  # noqa: BLE001
            print(f"{path} cannot be read: {error}", file=sys.stderr, flush=True)
    return None


def main():
    if SIZE > 1:
        dist.init_process_group("gloo")
    random.seed(RANK)
    numpy.random.seed(RANK)
    torch.manual_seed(0)
    stop = []
    signal.signal(signal.SIGUSR2, lambda *_: stop.append(1))
    net = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    model = nn.parallel.DistributedDataParallel(net) if SIZE > 1 else net
    torch.manual_seed(RANK)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=5)
    ema = {name: value.clone() for name, value in net.state_dict().items() if value.is_floating_point()}
    data = Points()
    sampler = DistributedSampler(data, num_replicas=SIZE, rank=RANK, seed=3)
    per_epoch = len(sampler) // BATCH
    step = 0
    checkpoint = newest()
    if checkpoint is not None:
        net.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        scaler.load_state_dict(checkpoint["scaler"])
        ema = checkpoint["ema"]
        step = checkpoint["step"]
    states = checkpoint["random"] if checkpoint is not None else None
    for epoch in range(step // per_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        used = step - epoch * per_epoch
        for number, indices in enumerate(list(sampler)[i : i + BATCH] for i in range(0, len(sampler), BATCH)):
            if number < used:
                continue
            if states is not None:
                restore_random(states[RANK])
                states = None
            loader = DataLoader(data, batch_sampler=[indices], generator=torch.Generator().manual_seed(step))
            for x, y in loader:
                with torch.autocast("cpu", enabled=False):
                    loss = (model(x) - y).square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                with torch.no_grad():
                    for name, value in net.state_dict().items():
                        if name in ema:
                            ema[name].lerp_(value, 0.1)
            step += 1
            has_signal = max(gathered(len(stop)))
            if step % EVERY == 0 or has_signal:
                state = {
                    "model": net.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "scaler": scaler.state_dict(),
                    "ema": ema,
                    "random": gathered(random_states()),
                    "step": step,
                }
                save(state, step)
            if has_signal:
                sys.exit(0)


main()
