"""A Lightning training of two nodes that hangs: ``hanging_lightning.py CASE DEVICES``."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import lightning
import torch

LONG = 100_000.0


class Report(lightning.Callback):
    """Draws a picture with a program after the validation, without a word to the other ranks."""

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if trainer.global_rank == 0:
            subprocess.run(["sleep", str(LONG)], check=False)


class Items(torch.utils.data.IterableDataset):
    """Rank 2 has eight batches and the others have twelve."""

    def __iter__(self):
        rank = int(os.environ["SLURM_PROCID"])
        return iter(torch.ones(16 if rank == 2 else 24, 8))


class Model(lightning.LightningModule):
    """Hangs in the way of ``case``."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case, self.layer = case, torch.nn.Linear(8, 8)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        if index == 2:
            with open(os.path.join(os.environ["MARKS"], f"up-{self.global_rank}"), "w"):
                pass
            if self.case == "sleeps_in_step" and self.global_rank == 1:
                time.sleep(LONG)
        return self.layer(batch).sum()

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        if self.case == "sleeps_in_validation" and self.global_rank == 0:
            time.sleep(LONG)
        self.log("loss", self.layer(batch).sum(), sync_dist=True)

    def on_train_epoch_end(self) -> None:
        if self.case == "other_batches" and self.global_rank == 3:
            torch.distributed.barrier()
        self.all_gather(torch.ones(2))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    torch.set_num_threads(1)
    items = Items() if sys.argv[1] == "fewer_batches" else torch.ones(64, 8)
    loader = torch.utils.data.DataLoader(items, batch_size=2)
    callbacks = [Report()] if sys.argv[1] == "callback_waits_for_program" else []
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(sys.argv[2]),
        num_nodes=2,
        strategy="ddp",
        max_epochs=3,
        callbacks=callbacks,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(sys.argv[1]), loader, loader)


if __name__ == "__main__":
    main()
