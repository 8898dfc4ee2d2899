"""Logs of failed jobs that other launchers started: the first failure is named with its rank, line and cause.

Each log is written for this test, in the style of the thread that is named. The reader was written without a
look at the logs that are marked ``held``; ``docs/figures.md`` has the score of both parts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from clusterrun.diagnosis.job_log import JobLog
from clusterrun.diagnosis.log_lines import LineSplitter
from clusterrun.diagnosis.log_verdict import diagnosis_of
from clusterrun.diagnosis.verdict import Diagnosis, Verdict

LOGS = Path(__file__).resolve().parents[1] / "recorded" / "foreign-logs"


class Answer(NamedTuple):
    """The expected answer for a log.

    source: the thread whose style it has; ``-``: none
    ranks: the ranks to blame; (): the log does not show which
    words: each must be said, or one of several that ``|`` separates
    place: the file and line of the user's code; '': none
    nodes: each must be named
    held: not looked at before the reader was finished
    """

    source: str
    ranks: tuple[int, ...]
    words: tuple[str, ...]
    place: str
    nodes: tuple[str, ...]
    held: bool


# Recorded by us.
H100 = (
    "one H100 80GB HBM3, driver 580.159.04, torch 2.11.0+cu130, NCCL 2.28.9, four lab nodes, 27 November 2026"
)
EXPECTED = {
    "torchrun-value-error": Answer(
        "Vision-CAIR/MiniGPT-4#237",
        (3,),
        ("ValueError: expected 512 tokens, got 513",),
        "collate.py:41",
        (),
        False,
    ),
    "torchrun-unmarked-old": Answer(
        "Facico/Chinese-Vicuna#113",
        (0,),
        ("RuntimeError: The size of tensor a (4096)",),
        "layers.py:77",
        (),
        False,
    ),
    "torchrun-sigkill": Answer("lzhxmu/CPPO#6", (2,), ("SIGKILL",), "", (), False),
    "torchrun-oom-eight-ranks": Answer(
        "huggingface/accelerate#1519", (5,), ("CUDA out of memory",), "train_enc.py:371", (), False
    ),
    "torchrun-error-file": Answer(
        "KellerJordan/modded-nanogpt#15", (6,), ("KeyError: 'embed.weight'",), "train_gpt2.py:133", (), False
    ),
    "torchrun-import-error-all": Answer(
        "Facico/Chinese-Vicuna#113",
        (0, 1),
        ("ModuleNotFoundError: No module named 'einops'",),
        "models.py:4",
        (),
        False,
    ),
    "torchrun-argparse": Answer(
        "OpenDriveLab/DriveLM#40", (0, 1), ("unrecognized arguments: --accum_iters 4",), "", (), False
    ),
    "torchrun-segfault": Answer("NVIDIA/Megatron-LM#1880", (1,), ("SIGSEGV",), "", (), True),
    "torchrun-watchdog": Answer(
        "XPixelGroup/BasicSR#737", (2,), ("ALLREDUCE", "SeqNum=808|collective 808"), "", (), False
    ),
    "watchdog-all-ranks": Answer(
        "hiyouga/LlamaFactory#7396", (), ("ALLREDUCE", "not show all ranks"), "", (), False
    ),
    "watchdog-old-style": Answer("OFA-Sys/OFA#271", (), ("ALLREDUCE",), "", (), True),
    "exception-then-watchdog": Answer(
        "pytorch/pytorch#118369",
        (4,),
        ("FloatingPointError: loss became nan at step 96",),
        "loop.py:21",
        (),
        False,
    ),
    "srun-plain-time-limit": Answer("desihub/desitarget#628", (), ("time limit",), "", (), False),
    "srun-oom-kill": Answer("chrisknewman/tusas#149", (1, 2, 3), ("memory",), "", ("nid001277",), False),
    "srun-oom-kill-old": Answer("ZwwWayne/K-Net#30", (0,), ("memory",), "", ("gpu20-15",), False),
    "batch-killed-line": Answer("ArjunaCluster/ArjunaUsers#52", (), ("memory",), "", (), False),
    "srun-labelled-exception": Answer(
        "NVIDIA-NeMo/Speech#5819",
        (5,),
        ("RuntimeError: shape '[8, 128]' is invalid",),
        "pretrain.py:276",
        ("n07",),
        False,
    ),
    "srun-peer-reset-first-in-file": Answer(
        "NVIDIA/nccl#795", (9,), ("AssertionError: vocabulary size changed",), "tok.py:15", (), True
    ),
    "srun-unlabelled-two-ranks": Answer(
        "facebookresearch/DiT#79", (9,), ("IndexError: list index out of range",), "train.py:208", (), False
    ),
    "lightning-misconfiguration": Answer(
        "Lightning-AI/pytorch-lightning#16828",
        (3,),
        ("MisconfigurationException", "But your machine only has: [0]"),
        "fit.py:22",
        (),
        True,
    ),
    "lightning-ddp-init-then-error": Answer(
        "Lightning-AI/pytorch-lightning#4442", (), ("CUDA out of memory",), "net.py:118", (), False
    ),
    "lightning-sigterm-exception": Answer(
        "Lightning-AI/pytorch-lightning#20542",
        (1,),
        ("PermissionError", "runs/ckpt/last.ckpt"),
        "callbacks.py:33",
        (),
        False,
    ),
    "accelerate-rich-traceback": Answer(
        "huggingface/accelerate#1192", (4,), ("uncorrectable ECC error",), "train_text.py:441", (), False
    ),
    "accelerate-simple-called-process": Answer(
        "huggingface/accelerate#1918", (), ("KeyError: 'input_ids'",), "sft.py:44", (), False
    ),
    "accelerate-pdsh-port-taken": Answer(
        "huggingface/accelerate#3312",
        (),
        ("EADDRINUSE|ddress already in use",),
        "qwen.py:59",
        ("gpu315",),
        True,
    ),
    "deepspeed-sigkill": Answer("deepspeedai/DeepSpeed#3232", (), ("signal 9|SIGKILL|-9",), "", (), False),
    "deepspeed-exception": Answer(
        "deepspeedai/DeepSpeed#1581",
        (),
        ("AssertionError: Check batch related parameters",),
        "pretrain.py:166",
        (),
        False,
    ),
    "deepspeed-bus-error": Answer(
        "deepspeedai/DeepSpeed#4000", (), ("shared memory|-7|SIGBUS",), "", (), False
    ),
    "mpirun-exception-tagged": Answer(
        "horovod/horovod#2097", (1,), ("ValueError: negative learning rate",), "hvd_train.py:52", (), False
    ),
    "mpirun-signal": Answer("Kay1794/Aware-of-the-history#2", (1,), ("signal 9",), "", ("c31",), False),
    "mpirun-untagged-exit": Answer(
        "horovod/horovod#1421", (0,), ("FileNotFoundError", "train-00001.tar"), "train_mpi.py:33", (), False
    ),
    "rendezvous-timeout": Answer(
        "pytorch/pytorch#107021",
        (),
        ("timed out after 60s while trying to connect|The client socket has timed out", "1234"),
        "",
        (),
        False,
    ),
    "port-taken-srun": Answer(
        "NVIDIA/Megatron-LM#1371", (0,), ("EADDRINUSE|ddress already in use",), "initialize.py:343", (), False
    ),
    "torchrun-tee-default-prefix": Answer(
        "huggingface/nanotron#115",
        (6,),
        ("ValueError: Unknown activation 'swiglu2'",),
        "activations.py:32",
        (),
        False,
    ),
    "ray-actor": Answer(
        "meta-pytorch/torchx#540", (), ("ZeroDivisionError: division by zero",), "ddp.py:67", (), False
    ),
    "ecc-megatron": Answer(
        "pytorch/pytorch#63174", (31,), ("uncorrectable ECC error", "exclude"), "", ("r7i4n5",), False
    ),
    "pyxis-container": Answer(
        "NVIDIA/pyxis#61",
        (1,),
        ("failed to execute: /bin/bash: No such file or directory|couldn't start container",),
        "",
        (),
        True,
    ),
    "slurm-script-missing": Answer(
        "ArjunaCluster/ArjunaUsers#21",
        (0,),
        ("No such file or directory", "train_all.py"),
        "",
        ("c002",),
        True,
    ),
    "command-not-found": Answer("-", (), ("command not found",), "", (), False),
    "device-assert": Answer(
        "pytorch/pytorch#55027",
        (2,),
        ("device-side assert triggered", "CUDA_LAUNCH_BLOCKING"),
        "loss.py:64",
        (),
        False,
    ),
    "bus-error-worker": Answer(
        "NVlabs/Deep_Object_Pose#297", (), ("shared memory",), "train.py:401", (), False
    ),
    "dataloader-worker-exception": Answer(
        "facebookresearch/mmf#441",
        (1,),
        ("UnidentifiedImageError: cannot identify image file",),
        "ds.py:29",
        (),
        True,
    ),
    "mp-spawn": Answer(
        "pytorch/examples#1279",
        (),
        ("RuntimeError: snapshot is from another model",),
        "multi.py:40",
        (),
        True,
    ),
    "time-limit-after-hang": Answer(
        "sxs-collaboration/spectre#3565", (2,), ("FileNotFoundError", "tokenizer.json"), "tok.py:5", (), False
    ),
    "cancelled-by-user": Answer("-", (), ("cancelled",), "", (), False),
    "preempted": Answer("MFlowCode/MFC#1771", (), ("preempt",), "", (), False),
    "node-failure": Answer("-", (), ("gn07", "fail"), "", ("gn07",), False),
    "nccl-warn-then-oom": Answer("NVIDIA/nccl#1235", (3,), ("out of memory",), "tune.py:58", (), False),
    "nccl-system-error-interface": Answer(
        "NVIDIA/nccl#697",
        (),
        ("no socket interface found|Bootstrap : no socket interface",),
        "train.py:30",
        (),
        False,
    ),
    "ib-completion-error": Answer(
        "NVIDIA/nccl-tests#252", (), ("Got completion from peer|RDMA",), "", (), True
    ),
    "syntax-error": Answer(
        "OEvortex/unsloth#4", (0,), ("SyntaxError: '(' was never closed",), "gpu.py:88", (), False
    ),
    "hydra-error": Answer("-", (0,), ("ConfigAttributeError", "optimizer"), "train.py:25", (), False),
    "timestamps-in-front": Answer(
        "intelligent-machine-learning/dlrover#443",
        (1,),
        ("StopIteration|RuntimeError: generator raised StopIteration",),
        "feed.py:17",
        (),
        False,
    ),
    "ansi-and-bars": Answer(
        "PKU-YuanGroup/UniWorld#46",
        (7,),
        ("TypeError: unsupported operand type(s) for +: 'NoneType' and 'Tensor'",),
        "train.py:588",
        (),
        True,
    ),
    "driver-too-old": Answer(
        "pytorch/pytorch#79847", (0,), ("NVIDIA driver on your system is too old",), "ini.py:20", (), True
    ),
    "disk-full-checkpoint": Answer(
        "NVIDIA/Megatron-LM#878", (0,), ("No space left on device",), "ckpt.py:77", (), True
    ),
    "gloo-connect-refused": Answer(
        "Lightning-AI/pytorch-lightning#18466",
        (),
        ("Name or service not known|gaierror|host",),
        "run.py:14",
        (),
        True,
    ),
    "no-error-finished": Answer("-", (), ("no error",), "", (), False),
    "no-error-cut-off": Answer("-", (), ("no error",), "", (), False),
    "warnings-only": Answer("-", (), ("no error",), "", (), False),
    "survived-then-real": Answer(
        "TuragaLab/flyvis#13",
        (),
        ("RuntimeError: optimizer state has 12 groups, model has 11",),
        "opt.py:12",
        (),
        False,
    ),
    "interleaved-no-prefix": Answer(
        "open-mmlab/mmdetection#291",
        (0, 1),
        ("RuntimeError: Given groups=1, weight of size [64, 3, 7, 7]",),
        "train.py:108",
        (),
        False,
    ),
    "sigill-from-srun": Answer("-", (4,), ("Illegal instruction",), "", ("zen1-03",), False),
    "exit-code-only": Answer("NVIDIA/pyxis#135", (12,), ("exit code 7",), "", ("node13",), False),
    "two-attempts-torchrun-restarts": Answer(
        "pytorch/pytorch#64926", (1,), ("RuntimeError: stream ended early",), "main.py:51", (), False
    ),
    "hostile-bytes": Answer("-", (2,), ("ValueError: bad",), "b.py:3", (), True),
    "exception-without-traceback": Answer("-", (), ("ValueError: x",), "", (), False),
    "deepspeed-lines-behind-exception": Answer(
        "-", (), ("AssertionError: Check batch",), "64 != 4 * 4 * 2, at zero3.py:51", (), False
    ),
    "lightning-survived-then-behind-bar": Answer(
        "-", (1,), ("ValueError: Expected argument",), "model.py:210", ("gn12",), False
    ),
    "deepspeed-below-srun": Answer("-", (), ("size or type",), "", (), False),
    "deepspeed-oom-kill": Answer("-", (), ("memory ran out",), "", (), False),
    "bar-behind-message": Answer("-", (), ("is expected)",), "run_clm.py:612", (), False),
    "segfault-labelled-stack": Answer("-", (3,), ("Segmentation fault",), "fused.py:88", ("node07",), False),
    "handled-then-finished": Answer("-", (), ("no error",), "", (), False),
    "others-step-on-after-the-end": Answer("-", (2,), ("KeyError",), "train.py:20", (), False),
    "apptainer-no-image": Answer(
        "-", (0, 1), ("container could not be started: could not open image",), "", ("a1",), False
    ),
    "ray-worker-killed": Answer("-", (), ("low on memory",), "drive.py:12", (), False),
    "watchdog-one-call-behind": Answer("-", (7,), ("collective 4470",), "", (), False),
    "cut-off-in-traceback": Answer("-", (3,), ("the log ends in a traceback",), "fsdp.py:97", (), False),
    "oom-two-of-four-ranks": Answer("-", (1, 3), ("CUDA out of memory",), "blocks.py:44", ("dgx07",), False),
    "same-error-every-task": Answer("-", (0, 1), ("No module named 'flash_attn'",), "train.py:3", (), False),
    "exception-group": Answer("-", (), ("FileNotFoundError",), "fetch.py:18", (), False),
    "bar-before-traceback": Answer("-", (), ("RuntimeError: The size of tensor a",), "vae.py:22", (), False),
    "srun-starts-no-step": Answer(
        "-", (), ("srun could not start the ranks", "Requested node configuration"), "", (), False
    ),
    "pool-worker-exception": Answer("-", (), ("KeyError: '\\u2603'",), "tok.py:14", (), True),
    "node-failure-and-peers": Answer("-", (), ("gpu-088",), "", ("gpu-088",), True),
    "errors-named-in-passing": Answer("-", (), ("no error",), "", (), False),
    "logger-exception": Answer("-", (2,), ("PytorchStreamWriter failed",), "ckpt.py:52", (), False),
    "quota": Answer("espnet/espnet#1185", (), ("Disk quota exceeded",), "trainer.py:412", (), False),
    "srun-labelled-missing-shard": Answer(
        "-", (5,), ("FileNotFoundError",), "shards.py:66", ("tcn413",), False
    ),
    "torchrun-oom-and-second-agent": Answer("-", (3,), ("CUDA out of memory",), "blocks.py:91", (), False),
    "lightning-zombies-behind-bar": Answer(
        "Nixtla/neuralforecast#1291", (2,), ("KeyError: 'TS_0417'",), "tomo_data.py:143", (), False
    ),
    "accelerate-no-pad-token": Answer(
        "-", (2,), ("ValueError: Asking to pad",), "run_sft.py:240", ("a100-07",), False
    ),
    "deepspeed-oom-in-batch-step": Answer(
        "deepspeedai/DeepSpeed#3232", (), ("memory ran out", "--mem"), "", (), False
    ),
    "watchdog-one-rank-silent": Answer("NVIDIA/Megatron-LM#1207", (4,), ("ALLREDUCE", "8211"), "", (), False),
    "megatron-index-assertion": Answer(
        "-",
        (1,),
        ("device-side assert", "vocabulary"),
        "language_model_embedding.py:118",
        ("dgx-a07",),
        False,
    ),
    "hydra-target-in-all-ranks": Answer("-", (0, 1, 2, 3), ("modes_y",), "launch.py:57", ("r05n12",), False),
    "ray-train-by-the-driver": Answer(
        "ray-project/ray#53123", (1,), ("ZeroDivisionError",), "ray_fit.py:74", ("10.4.0.18",), False
    ),
    "node-failure-long-run": Answer("-", (), ("node hgx-b14 failed",), "", ("hgx-b14",), False),
    "preempted-short": Answer("-", (), ("preempted", "--requeue"), "", (), False),
    "time-limit-and-own-handler": Answer("-", (), ("time limit", "--time"), "", (), False),
    "segfault-two-threads": Answer("-", (2,), ("Segmentation fault",), "pdbset.py:58", ("cn78",), False),
    "bus-error-chain-in-container": Answer(
        "NVIDIA/Megatron-LM#878",
        (0,),
        ("Bus error", "--shm-size"),
        "engine_pretrain.py:39",
        ("dgx09",),
        False,
    ),
    "driver-too-old-warned-first": Answer(
        "-", (4,), ("driver on your system is too old",), "train.py:19", ("v100-3",), False
    ),
    "port-taken-torchrun-static": Answer(
        "-", (), ("ddress already in use", "another port"), "", ("g11",), False
    ),
    "quota-while-handling": Answer("-", (0,), ("Disk quota exceeded",), "callbacks.py:27", ("ac-05",), False),
    "stale-file-handle": Answer(
        "huggingface/transformers#9732", (7,), ("Stale file handle",), "ckpt.py:112", ("cnode07",), False
    ),
    "no-error-cache-miss": Answer("-", (), ("went on",), "", (), False),
    "no-error-words-of-errors": Answer("-", (), ("no error in it",), "", (), False),
    "two-attempts-appended": Answer("-", (0, 1), ("KeyError: 'optim'", "2 runs"), "train.py:77", (), False),
    "rich-traceback-frames": Answer(
        "-", (3,), ("shapes cannot be multiplied",), "spectro.py:31", ("bee02",), False
    ),
    "wandb-permission": Answer("-", (0,), ("403", "WANDB_MODE=offline"), "train_sat.py:61", ("sat1",), False),
    "hub-not-reached": Answer(
        "-", (0, 1), ("couldn't connect", "HF_HUB_OFFLINE"), "sft.py:29", ("nid005012",), False
    ),
    "ib-completion-of-one-node": Answer("NVIDIA/nccl#1405", (10,), ("NET/IB",), "", ("n17",), False),
    "logger-marks-and-nan": Answer("-", (9,), ("FloatingPointError",), "trainer.py:418", ("cgpu04",), False),
    "glibc-of-extension": Answer("-", (1,), ("GLIBC_2.29",), "train.py:5", ("gpua042",), False),
    "ddp-unused-parameters": Answer(
        "-", (1,), ("finished reduction", "find_unused_parameters"), "ddp_moe.py:99", ("w3",), False
    ),
    "mpirun-floating-point": Answer("-", (6,), ("signal 8",), "", ("compute-0-3",), False),
    "labelled-between-retries": Answer(
        "-", (11,), ("BoundsCheckError",), "aurora_ft.py:290", ("x3005c0s13b0n0",), False
    ),
    "torchrun-two-agents-report": Answer(
        "pytorch/examples#1279", (11,), ("ZeroDivisionError",), "trainer.py:201", ("gn-03.cl",), False
    ),
    "state-dict-mismatch-all-ranks": Answer("-", (0, 1, 2, 3), ("size mismatch",), "train.py:188", (), False),
    "inductor-out-of-resources": Answer("-", (1,), ("OutOfResources",), "run.py:71", ("a6000-2",), False),
    "ray-worker-out-of-gpu-memory": Answer(
        "verl-project/verl#597", (), ("CUDA out of memory",), "dp_actor.py:388", ("172.20.4.9",), False
    ),
    "lightning-wrong-task-count": Answer(
        "Lightning-AI/pytorch-lightning#20391", (0, 1, 2, 3), ("devices=4",), "fit.py:40", (), False
    ),
    "nemo-sample-too-long": Answer(
        "-", (13,), ("sample 40121",), "gpt_dataset.py:254", ("pool0-0114",), False
    ),
    "mpi-abort-rank": Answer("-", (0,), ("cannot reshape",), "emulator.py:155", (), False),
    "damaged-memory": Answer("-", (6,), ("invalid pointer", "PYTHONFAULTHANDLER"), "", ("c2-14",), False),
    "gloo-one-rank-left-early": Answer("-", (3,), ("last line of rank 3: bye",), "", (), False),
    "heartbeat-monitor-abort": Answer(
        "-", (2,), ("Heartbeat monitor",), "ckpt_utils.py:44", ("mango3",), False
    ),
    "xid-in-epilog": Answer(
        "-", (12,), ("unspecified launch failure", "rebooted"), "loop.py:133", ("frontA12",), False
    ),
    "json-records": Answer("-", (5,), ("ShardCorrupt",), "mds.py:120", ("ip-10-3-1-77",), False),
    "loguru-annotated": Answer("-", (1,), ("JSONDecodeError",), "coco.py:31", ("tesla05",), False),
    "remote-traceback-of-map": Answer("-", (0,), ("KeyError: 'summary'",), "prep.py:22", (), False),
    "cancelled-under-torchrun": Answer("-", (), ("cancelled",), "", (), False),
    "mmengine-old-launcher": Answer("-", (), ("cannot reshape array of size 4",), "dota.py:212", (), False),
    "illegal-access-in-watchdog": Answer("-", (6,), ("illegal memory access",), "", ("ga30-2",), False),
    "fairseq-recovered-then-nan": Answer(
        "-", (1,), ("FloatingPointError",), "dynamic_loss_scaler.py:61", ("clu-11",), False
    ),
    "dali-image-format": Answer(
        "-", (3,), ("Critical error in pipeline",), "main.py:188", ("nid03311",), False
    ),
    "webdataset-cut-shard": Answer(
        "-", (21,), ("unexpected end of data",), "train.py:96", ("andes14",), False
    ),
    "hdf5-lock": Answer(
        "-", (2,), ("unable to lock file", "HDF5_USE_FILE_LOCKING"), "cubes.py:19", ("lv-gpu-2",), False
    ),
    "disk-full-two-errors": Answer(
        "-", (0,), ("No space left", "disk is full"), "io_utils.py:18", ("h8-03",), False
    ),
    "rendezvous-never-complete": Answer("-", (), ("RendezvousTimeoutError", "did not meet"), "", (), False),
    "node-starts-no-task": Answer(
        "ai4d-iasc/trixie#58", (), ("Job credential expired", "--exclude"), "", ("cn131",), False
    ),
    "mp-spawn-out-of-memory": Answer("-", (), ("memory ran out", "--mem"), "", (), False),
    "fabric-not-ready": Answer("-", (0,), ("Error 802", "fabricmanager"), "ppo.py:12", ("hgx-9",), False),
    "message-and-exit-code": Answer(
        "-", (0,), ("exit code 3", "validation set is empty"), "", ("mk-2",), False
    ),
    "argparse-labelled": Answer("-", (0, 1, 2), ("invalid float value",), "", ("q1",), False),
    "exit-code-of-a-signal": Answer("-", (3,), ("137", "memory ran out"), "", ("k8-gpu-2",), False),
    "intel-mpi-bad-termination": Answer("-", (5,), ("signal 11",), "", ("i23r02c03s08",), False),
    "horovodrun-shut-down": Answer("-", (3,), ("bf16 is not supported",), "reduce.py:14", (), False),
    "module-unknown-then-library": Answer(
        "-", (0,), ("libcudart", "cuda/13.9"), "train.py:4", ("r1",), False
    ),
    "conda-not-configured": Answer(
        "-", (0, 1), ("No module named 'torch'", "conda activate"), "train.py:1", ("s1",), False
    ),
    "requeued-only": Answer("-", (), ("requeued",), "", (), False),
    "worker-killed-and-oom-step": Answer("-", (1,), ("memory", "--mem"), "", ("gp7",), False),
    "memory-summary-then-oom": Answer("-", (0,), ("CUDA out of memory",), "vae.py:203", ("nid001",), False),
    "lightning-validation-bar": Answer("-", (0,), ("IndexError",), "net.py:140", ("v1",), False),
    "hub-too-many-requests": Answer("-", (5,), ("429",), "prep_train.py:18", ("gadi-2",), False),
    "deepspeed-batch-sizes": Answer("-", (), ("train_batch_size is not equal",), "finetune.py:88", (), False),
    "flash-attention-old-gpu": Answer(
        "-", (0, 1), ("FlashAttention only supports",), "attn.py:55", (), False
    ),
    "gloo-no-interface": Answer(
        "-", (0,), ("Unable to find address", "names an interface"), "gl.py:9", ("e1",), False
    ),
    "device-ordinal-second-node": Answer(
        "-", (4, 5, 6, 7), ("invalid device ordinal", "LOCAL_RANK"), "run.py:14", ("ice-2",), False
    ),
    "time-limit-under-torchrun": Answer("-", (), ("time limit",), "", (), False),
    "nccl-shared-memory-full": Answer("-", (1,), ("/dev/shm",), "train.py:31", ("r10n3",), False),
    "syntax-of-newer-python": Answer("-", (0, 1, 2), ("SyntaxError",), "train.py:61", (), False),
    "no-error-lightning-table": Answer("-", (), ("no error in it",), "", (), False),
    "ddp-parameter-counts": Answer("-", (1,), ("DDP expects same model",), "ddp.py:50", ("b2",), False),
    "circular-import": Answer(
        "-", (0, 1, 2, 3), ("circular import", "import each other"), "models.py:2", (), False
    ),
    "first-rank-fails-others-wait": Answer("-", (0,), ("sentencepiece",), "train.py:7", ("c01",), False),
    "submitit-exception": Answer("-", (0,), ("Loss is nan",), "main_dino.py:266", ("lr-9",), False),
    "no-local-rank": Answer(
        "-", (0, 1), ("KeyError: 'LOCAL_RANK'", "SLURM_LOCALID"), "fsdp_run.py:5", (), False
    ),
    "permission-of-cache": Answer("-", (1,), ("Permission denied",), "run.py:22", ("px7",), False),
    "store-key-of-absent-rank": Answer("-", (0,), ("never came",), "", (), False),
    "recursion-depth": Answer("-", (0,), ("RecursionError",), "tree.py:12", ("q1",), False),
    "retries-then-assertion": Answer("-", (6,), ("z has NaN",), "loop.py:140", ("vv2",), False),
    "rich-without-bars": Answer("-", (3,), ("IndexError",), "sampler.py:30", ("s5",), False),
    "handled-then-watchdog": Answer("-", (7,), ("_REDUCE_SCATTER_BASE", "collective 4097"), "", (), False),
    "hydra-target-wraps-assertion": Answer(
        "-",
        tuple(range(8)),
        ("AssertionError: width 180", "look at"),
        "unet.py:57",
        ("l40s-07",),
        False,
    ),
    "checkpoint-fails-in-another-rank": Answer(
        "-", (3,), ("Size mismatch between saved",), "checkpoint.py:412", (), False
    ),
    "woven-message-of-lines": Answer(
        "-", (0, 1, 2, 3), ("2 validation errors for TrainConfig, at",), "launch.py:33", ("cn01",), False
    ),
    "vllm-worker-of-engine": Answer(
        "vllm-project/vllm#16692", (2,), ("CUDA out of memory", "infer.py:30"), "", (), False
    ),
    "cancelled-with-own-handler": Answer("-", (), ("cancelled",), "", (), False),
    "two-attempts-by-hand": Answer("-", (0,), ("KeyError: 'top1'", "2 runs"), "evalu.py:31", ("gn5",), False),
    "mpirun-too-few-slots": Answer("-", (), ("not enough slots",), "", (), False),
    "json-of-data-set": Answer(
        "-", (0,), ("DatasetGenerationError", "JSON parse error"), "dpo.py:66", ("lam-2",), False
    ),
    "logger-marks-behind-rank": Answer(
        "-", (3,), ("RuntimeError: grad norm 912.4",), "train.py:361", ("t9",), False
    ),
    "no-error-torchrun-restarted": Answer("-", (), ("shows no failure", "2 attempts"), "", (), False),
    "script-variable-not-set": Answer("-", (), ("HEAD_NODE_IP: unbound variable",), "", (), False),
    "time-limit-after-retry": Answer("-", (), ("time limit", "--time"), "", (), False),
    "port-taken-second-task-waits": Answer(
        "-", (), ("ddress already in use", "another port"), "", ("gpu014",), False
    ),
    "exception-group-labelled": Answer(
        "-", (3,), ("AccessDenied", "look at"), "prefetch.py:52", ("ip-10-0-4-19",), False
    ),
    "woven-frames": Answer("-", (), ("loading state_dict for SegNet",), "finetune.py:39", (), False),
    "handled-then-killed": Answer("-", (0,), ("SIGKILL", "memory ran out"), "", ("mem-1",), False),
    "ssh-refused-by-node": Answer("-", (), ("Connection refused", "--exclude"), "", ("worker-2",), False),
    "nccl-tests-failure": Answer("NVIDIA/nccl-tests#252", (1,), ("unhandled system error",), "", (), False),
    "handled-then-exit-code": Answer(
        "-", tuple(range(8)), ("exit code 2", "global batch 500"), "", ("z2",), False
    ),
    "no-error-ignored-at-end": Answer("-", (), ("no error in it",), "", (), False),
    "submitit-plug-in-not-loaded": Answer("-", (), ("KeyError: 'acc'",), "", (), False),
    "pyxis-image-not-found": Answer(
        "-", (0, 1), ("404 Not Found", "enroot import"), "", ("ip-10-1-44-9", "ip-10-1-47-3"), False
    ),
    "vllm-no-room-for-cache": Answer(
        "vllm-project/vllm#26898",
        (0,),
        ("No available memory", "max-model-len"),
        "",
        ("gpu-a-07",),
        False,
    ),
    "mpirun-bus-error-of-file": Answer("-", (6,), ("Bus error", "a mapped file"), "", ("cn04",), False),
    "script-not-there-all-ranks": Answer(
        "-", (0, 1, 2, 3), ("can't open file",), "", ("c101", "c102"), False
    ),
    "ray-worker-sigkill": Answer(
        "verl-project/verl#383", (), ("was killed or crashed", "dmesg"), "s02_ray.py:12", (), False
    ),
    "extension-not-compiled": Answer(
        "-", (0,), ("cpu_adam", "cuda_runtime_api.h", "CUDA toolkit"), "run_sft.py:88", (), False
    ),
    "gated-repo": Answer("-", (0,), ("gated repo", "accept the terms"), "main.py:71", ("rl-2",), False),
    "sigterm-from-timeout": Answer("-", (), ("ended from outside", "signal: 15"), "", (), False),
    "mpi-message-truncated": Answer("-", (3,), ("MPI_ERR_TRUNCATE",), "", ("c2-11",), False),
    "no-error-server-refuses-a-request": Answer("-", (), ("went on",), "", (), False),
    "thread-fails-then-queue-is-empty": Answer(
        "-", (), ("OSError: image file is truncated",), "t02.py:4", (), False
    ),
    "compiled-code-of-user": Answer("-", (), ("Data-dependent branching",), "t03.py:6", (), False),
    "srun-options-exclude-each-other": Answer(
        "-", (), ("could not start the ranks: SLURM_MEM_PER_CPU",), "", (), False
    ),
    "composer-sections-of-ranks": Answer(
        "-", (3,), ("KeyError: 'messages'",), "finetuning.py:212", (), False
    ),
    "mark-of-first-line-only": Answer("-", (3,), ("Not enough memory",), "model_runner.py:1201", (), False),
    "no-error-finished-after-node-failure": Answer("-", (), ("shows no failure", "2 runs"), "", (), False),
    "preempted-then-failed": Answer(
        "-", (0,), ("written by 16 ranks", "2 runs"), "resume.py:33", ("p-21",), False
    ),
    "json-message-and-exit-code": Answer(
        "-", (2,), ("before that: ERROR: training failed: gradient norm",), "", ("k8n-4",), False
    ),
    "map-worker-out-of-memory": Answer(
        "-", (0,), ("memory ran out", "abruptly died", "prepare.py:51"), "", ("m12",), False
    ),
    "task-launch-timeout": Answer("-", (), ("started 3 of 4 tasks", "sinfo -R"), "", (), False),
    "labelled-abort-of-native-program": Answer("-", (2,), ("cannot open /scratch",), "", ("q5",), False),
    "labelled-out-of-gpu-resources": Answer(
        "-", (4,), ("HSA_STATUS_ERROR_OUT_OF_RESOURCES",), "", ("frontier04123",), False
    ),
    "option-missing-in-a-box": Answer(
        "-", (0,), ("before that: Missing option '--data'",), "", ("cl07",), False
    ),
    "container-log-in-json": Answer("-", (0,), ("Weights only load failed",), "u07.py:4", ("cl07",), False),
    "torchrun-report-is-missing": Answer("-", (), ("SIGKILL", "local rank 2"), "", (), False),
    "checkpoint-is-cut": Answer(
        "-", (0, 1, 2, 3), ("failed finding central directory", "older checkpoint"), "resume.py:20", (), False
    ),
    "loss-is-nan-without-traceback": Answer("-", (1,), ("Loss is nan",), "", ("v100-2",), False),
    "woven-import": Answer(
        "jzhang38/TinyLlama#194", (0, 1), ("undefined symbol",), "fused_cross_entropy.py:8", (), False
    ),
    "mark-behind-another-line": Answer(
        "sgl-project/sglang#3836",
        (),
        ("Fatal Python error: Aborted", "[Rank 5] Watchdog caught"),
        "scheduler.py:1740",
        (),
        False,
    ),
    "watchdog-at-two-calls": Answer(
        "jpata/particleflow#390",
        (),
        (
            "rank 0 waited in BROADCAST of 264 (collective 8022",
            "ranks 1-3 waited in ALLREDUCE of 1 (collective 8021",
        ),
        "",
        (),
        False,
    ),
    "woven-nccl-system-error": Answer(
        "Lightning-AI/pytorch-lightning#7429",
        (4, 5, 6, 7),
        ("unhandled system error", "NCCL_DEBUG"),
        "debug.py:72",
        ("gpu5",),
        False,
    ),
    "ray-gpu-memory-of-driver-call": Answer(
        "THUDM/slime#1497",
        (),
        ("CUDA_ERROR_OUT_OF_MEMORY", "a GPU ran out of memory"),
        "actor.py:133",
        ("33.184.121.56",),
        False,
    ),
    "handler-fails-after-gpu-memory": Answer(
        "microsoft/ReCo#8",
        (),
        ("failed first: RuntimeError: CUDA out of memory", "which led to: NameError"),
        "main.py:55",
        (),
        False,
    ),
    "old-spawn-killed": Answer(
        "jeffffffli/HybrIK#198",
        (),
        ("process 3 terminated with signal SIGKILL", "memory ran out"),
        "train_smpl_cam.py:213",
        (),
        False,
    ),
    "preempted-then-barrier-times-out": Answer(
        "facebookincubator/submitit#1613",
        (),
        ("in store based barrier on rank: 0", "2 runs"),
        "utils.py:231",
        (),
        False,
    ),
    "ddp-ready-twice": Answer(
        "OEvortex/unsloth#10",
        (0, 3),
        ("mark a variable ready only once", "use_reentrant=False"),
        "UnslothSFTTrainer.py:53",
        (),
        False,
    ),
    "old-spawn-exception": Answer(
        "facebookresearch/detectron2#2398",
        (),
        ("unhandled system error", "in Process 3"),
        "train_net.py:149",
        (),
        False,
    ),
    "killed-while-other-node-waits": Answer("-", (2,), ("SIGKILL", "memory ran out"), "", ("n01",), False),
    "woven-two-places": Answer("-", (), ("pixel_values", "or fit.py:31"), "fit.py:33", (), False),
    "segfault-then-others-time-out": Answer(
        "-", (3,), ("Segmentation fault", "PYTHONFAULTHANDLER"), "", ("n3",), False
    ),
    "nccl-last-error": Answer(
        "NVIDIA/nccl#1185", (), ("Last error: Cuda failure 'invalid argument'",), "train.py:240", (), False
    ),
    "nccl-message-truncated": Answer(
        "foundation-model-stack/fms-fsdp#94",
        (2, 5),
        ("Message truncated", "equal shapes"),
        "train_utils.py:91",
        ("a100",),
        False,
    ),
    "launch-failed-in-pmix": Answer(
        "NVIDIA-NeMo/Speech#14829", (), ("task 0 launch failed", "pmix_v4", "--mpi"), "", (), False
    ),
    "batch-floating-point": Answer(
        "open-mmlab/mmdetection#9210", (), ("Floating point exception",), "", (), False
    ),
    "job-container-not-joined": Answer(
        "ArjunaCluster/ArjunaUsers#123", (), ("container_p_join: open failed", "--exclude"), "", (), False
    ),
    "jax-heartbeat": Answer(
        "EleutherAI/architecture-objective#26", (37,), ("heartbeat timeout",), "", (), False
    ),
    "ray-link-before-dead-worker": Answer(
        "OpenRLHF/OpenRLHF#621", (), ("status=12", "an RDMA path"), "", ("172.19.24.110",), False
    ),
    "ray-collective-times-out": Answer(
        "hiyouga/EasyR1#300", (), ("ranks 4-7 waited in ALLREDUCE",), "", (), False
    ),
    "ray-address-of-a-link": Answer(
        "verl-project/verl#726",
        (),
        ("169.254.0.1", "NCCL_SOCKET_IFNAME"),
        "fsdp_workers.py:371",
        ("10.1.0.7",),
        False,
    ),
    "ray-equal-lines-left-out": Answer(
        "DataArcTech/SQL-R1#18", (), ("ranks 0 and 2 waited in ALLREDUCE",), "", (), False
    ),
    "forward-compatibility": Answer(
        "axolotl-ai-cloud/axolotl#10", (), ("Error 804", "cuda/compat"), "distributed.py:26", (), False
    ),
    "ray-actor-of-worker-group": Answer(
        "RUC-NLPIR/Tool-Star#10", (), ("was killed or crashed", "dmesg"), "base.py:42", ("10.0.0.7",), False
    ),
    "composer-rank-by-signal": Answer(
        "mosaicml/llm-foundry#258", (2,), ("SIGBUS", "/dev/shm"), "", (), False
    ),
    "horovodrun-status-of-a-signal": Answer(
        "horovod/horovod#3472", (0,), ("SIGKILL", "memory ran out"), "", (), False
    ),
    "h100-illegal-access": Answer(
        H100, (1,), ("illegal memory access", "CUDA_LAUNCH_BLOCKING=1"), "train.py:213", ("n0002",), False
    ),
    "h100-device-assert": Answer(
        H100, (2,), ("device-side assert", "t >= 0 && t < n_classes"), "train.py:203", ("n0003",), False
    ),
    "h100-out-of-memory": Answer(H100, (1,), ("CUDA out of memory",), "train.py:194", ("n0002",), False),
    "h100-rank-comes-late": Answer(
        H100, (3,), ("it had begun 10 collectives", "ALLREDUCE of 1049600"), "", (), False
    ),
    "mpirun-real-exit": Answer("horovod/horovod#642", (0,), ("exited with code 1",), "", (), False),
}


def diagnosed(text: str) -> Diagnosis:
    log = JobLog()
    log.begin_file()
    for line in text.split("\n"):
        log.hear(line)
    return diagnosis_of(log)


def test_every_log_has_an_answer_and_some_were_held_back() -> None:
    assert {path.stem for path in LOGS.iterdir()} == {*EXPECTED}
    assert len(EXPECTED) >= 60 and sum(answer.held for answer in EXPECTED.values()) == 17


@pytest.mark.parametrize("name", EXPECTED)
def test_the_first_failure_of_a_log_is_named(name: str) -> None:
    answer = EXPECTED[name]
    diagnosis = diagnosed((LOGS / f"{name}.txt").read_bytes().decode("utf-8", "replace"))
    whys = [culprit.why for culprit in diagnosis.culprits]
    text = "\n".join((diagnosis.message, *whys, *diagnosis.evidence, diagnosis.remedy))
    assert tuple(culprit.rank for culprit in diagnosis.culprits if culprit.rank >= 0) == answer.ranks
    missing = [
        expected
        for expected in answer.words
        if not re.search("|".join(map(re.escape, expected.split("|"))), text, re.IGNORECASE)
    ]
    assert missing == []
    assert answer.place in diagnosis.message
    nodes = {culprit.node for culprit in diagnosis.culprits}
    assert [node for node in answer.nodes if node not in nodes and node not in diagnosis.message] == []


@pytest.mark.parametrize(
    "mark", ["", "3: ", " 3: ", "[default3]:", "[rank3]: ", "2025-01-02T03:04:05.678Z ", "[1,3]<stderr>:"]
)
def test_marks_in_front_of_lines_do_not_hide_an_error(mark: str) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 7, in go',
        "    x()",
        "KeyError: 'x'",
    ]
    diagnosis = diagnosed("\n".join(mark + line for line in lines))
    assert "KeyError: 'x', at b.py:7 (go)" in diagnosis.message
    is_rank = mark in ("3: ", " 3: ", "[rank3]: ", "[1,3]<stderr>:")
    assert [culprit.rank for culprit in diagnosis.culprits] == ([3] if is_rank else [])


@pytest.mark.parametrize("line", ["12: loss 0.3", "n12: 0.3 s", "Epoch 3: 10%"])
def test_a_number_or_a_name_before_a_colon_is_no_rank_prefix_by_itself(line: str) -> None:
    (part,) = LineSplitter().split(line)
    assert (part.text, part.rank, part.node) == (line, -1, "")


def test_mixed_lines_of_ranks_are_separated() -> None:
    lines = {
        1: ["Traceback (most recent call last):", '  File "/a.py", line 1, in one', "ValueError: first"],
        2: [
            "Traceback (most recent call last):",
            '  File "/a.py", line 2, in two',
            "RuntimeError: Connection closed by peer",
        ],
    }
    mixed = [f"{rank}: {lines[rank][place]}" for place in range(3) for rank in (2, 1)]
    diagnosis = diagnosed("\n".join(mixed))
    assert [culprit.rank for culprit in diagnosis.culprits] == [1]
    assert any(line.startswith("a consequence: rank 2") for line in diagnosis.evidence)


def test_the_earliest_report_of_several_nodes_counts_and_not_the_order_of_their_files() -> None:
    log = JobLog()
    for rank, second in ((0, 49), (21, 44)):
        log.begin_file()
        lines = [
            f"[rank{rank}]: Traceback (most recent call last):",
            f'[rank{rank}]:   File "/a/b.py", line {rank}, in go',
            f"[rank{rank}]: ValueError: of rank {rank}",
            "Root Cause (first observed failure):",
            "[0]:",
            f"  time      : 2025-09-14_03:12:{second}",
            f"  host      : n{rank}",
            f"  rank      : {rank} (local_rank: 0)",
        ]
        for line in lines:
            log.hear(line)
    diagnosis = diagnosis_of(log)
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == [(21, "n21")]


@pytest.mark.parametrize("first", [0, 1])
def test_an_error_counts_before_failed_links_in_another_file(first: int) -> None:
    link = (
        "n1:800:1450 [0] transport/net_ib.cc:1887 NCCL WARN NET/IB: Got completion from peer with status=12"
    )
    ecc = "[rank21]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
    log = JobLog()
    for line in (link, ecc)[:: 1 if first else -1]:
        log.begin_file()
        log.hear(line)
    assert "ECC" in diagnosis_of(log).message


TIME_LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***"
INTERRUPTED = [
    "Traceback (most recent call last):",
    '  File "/a.py", line 9, in <module>',
    "KeyboardInterrupt",
]


@pytest.mark.parametrize("signal_is_first", [False, True])
def test_launchers_that_a_cancelled_job_ends_are_not_its_cause_and_no_new_attempt(
    signal_is_first: bool,
) -> None:
    """scancel prints a line of the step and one of the job. Each torchrun prints the same traceback."""
    cancelled = "slurmstepd-n1: error: *** {} ON n1 CANCELLED AT 2025-01-01T00:00:00 ***"
    launcher = [
        "W1126 17:33:03.539000 836 torch/distributed/elastic: Received 15 death signal, shutting down",
        *INTERRUPTED[:2],
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 836 got signal: 15",
    ]
    ended = "srun: error: n{}: task {}: Exited with exit code 1"
    lines = [cancelled.format("STEP 7.0"), cancelled.format("JOB 7"), *launcher, *launcher]
    if signal_is_first:
        lines = [launcher[0], *lines]
    diagnosis = diagnosed("\n".join([*lines, ended.format(2, 1), ended.format(1, 0)]))
    assert (diagnosis.message, diagnosis.culprits) == ("the job was cancelled", ())
    assert not any("the log holds" in line for line in diagnosis.evidence)


@pytest.mark.parametrize(
    "lines", [[*INTERRUPTED, TIME_LIMIT], [TIME_LIMIT, *INTERRUPTED[:2], "OSError: gone"]]
)
def test_errors_of_ranks_that_were_ended_with_the_job_are_not_its_cause(lines: list[str]) -> None:
    diagnosis = diagnosed("\n".join(lines))
    assert (diagnosis.message, diagnosis.culprits) == ("Slurm ended the job at its time limit", ())


def test_an_interrupt_comes_from_outside_and_its_handler_is_not_the_cause() -> None:
    handler = [
        "Traceback (most recent call last):",
        '  File "/b.py", line 5, in stop',
        "NameError: no kill_cmd",
    ]
    diagnosis = diagnosed("\n".join([*INTERRUPTED, *handler]))
    assert "from outside: KeyboardInterrupt, at a.py:9" in diagnosis.message
    assert "program's own" not in diagnosis.remedy


def test_a_missing_command_is_not_the_cause_if_the_script_continued() -> None:
    missing = "/var/spool/slurmd/job7/slurm_script: line 3: nvidia-smi: command not found"
    assert "nvidia-smi" in diagnosed(missing).message
    assert "time limit" in diagnosed("\n".join([missing, "step 1 loss 2.0", TIME_LIMIT])).message


def test_a_rank_that_was_sent_data_of_another_size_is_not_blamed() -> None:
    abort = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 6 vs 2. Received"
    lines = [f"[rank3]: {abort}"]
    for rank, number in ((0, 14), (1, 14), (2, 26)):
        lines += [
            f"[rank{rank}]: Traceback (most recent call last):",
            f'[rank{rank}]:   File "/home/me/train.py", line {number}, in step',
            f"[rank{rank}]: RuntimeError: [pair.cc:537] Read error [10.1.0.4]:472: Connection reset by peer",
        ]
    result = diagnosed("\n".join(lines))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert "sender may be at fault" in result.message


def test_a_log_of_consequences_blames_nobody() -> None:
    diagnosis = diagnosed("[rank4]: RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.1]:80")
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNDETERMINED, ())
    assert "rank 4 only noticed" in diagnosis.message


def test_an_empty_log_has_a_hint() -> None:
    diagnosis = diagnosed("")
    assert diagnosis.message == "the log is empty" and "sacct -j JOB" in diagnosis.remedy


CHECK = """\
checks n[0001-0003] of job 35: 20261127-235341-5y10-check
pre-flight: tests of pairs, round 1, waiting for 2 answers, 51 s left
FAIL: n0001 is unfit; torch is a CPU build on every node: it cannot use their GPUs -> install a CUDA
  build of torch: this one was built for CPUs alone; 2 of 3 nodes are fit
full check by gloo of 20261127-235341-5y10-check, 1 round of tests, 11.1 of 60 s

n0001: fail, left out
  gpus: nvidia-smi: Unable to determine the device handle for GPU0: 0000:1B:00.0: GPU is lost.
    Reboot the system to recover this GPU
     -> nvidia-smi on the node; if it fails again: reboot the node

a test said: NCCL error: unhandled system error
     -> a call of NCCL failed
"""
TIMED_OUT = """\
[E1127 23:54:53.2 socket.cpp:1028] The client socket has timed out after 60000ms connecting to (n0001, 29777).
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed.
srun: error: n0002: task 0: Exited with exit code 1
"""


@pytest.mark.parametrize("end", ["\nfit: n[0002-0003]\n", "\n", ""])
def test_the_report_of_a_check_is_no_error_of_a_process(end: str) -> None:
    diagnosis = diagnosed(CHECK + end + TIMED_OUT)

    assert diagnosis.verdict is Verdict.NEVER_ARRIVED and "(n0001, 29777)" in diagnosis.message
    assert not diagnosed(CHECK + end).culprits


STEPS = "".join(f"{rank}: [epoch {epoch}] rank {rank} done\n" for epoch in range(4) for rank in (0, 1, 2))
CAUGHT = """\
0: wandb: ERROR Error while calling W&B API: permission denied (<Response [403]>)
0: Traceback (most recent call last):
0:   File "/me/train.py", line 31, in init_wandb
0:     wandb.init(project="x")
0: wandb.errors.CommError: Error communicating with backend
"""
RETRIED = "2: WARNING shard 7 failed (ConnectionResetError(104, 'Connection reset by peer')), retry 1/5\n"


@pytest.mark.parametrize("error", [CAUGHT, RETRIED])
def test_an_error_after_which_all_ranks_train_to_the_end_failed_nothing(error: str) -> None:
    diagnosis = diagnosed(f"{error}{STEPS}0: all 4 epochs done in 41.2 s\n")
    assert diagnosis.verdict is Verdict.NOTHING


LIMIT = "submitit WARNING (2026-01-11 01:00:00,131) - Caught signal SIGUSR2 on n9: this job is timed-out.\n"
EXITED = "srun: error: n9: task 0: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("text", "verdict"), [(LIMIT + EXITED, Verdict.NOT_RUNNING), (EXITED + LIMIT, Verdict.CRASHED)]
)
def test_ranks_that_exit_after_the_notice_of_a_time_limit_did_not_fail(text: str, verdict: Verdict) -> None:
    assert diagnosed(text).verdict is verdict


def test_the_error_of_a_launcher_is_no_consequence_of_a_rank() -> None:
    failed = "0: [rank5]: Traceback (most recent call last):\n"
    failed += '0: [rank5]:   File "/me/train.py", line 31, in <module>\n0: [rank5]: KeyError: 7\n'
    launcher = "1: Traceback (most recent call last):\n"
    launcher += '1:   File "/env/bin/torchrun", line 8, in <module>\n1:     sys.exit(main())\n'
    launcher += "1: torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    diagnosis = diagnosed(failed + launcher)
    assert "KeyError: 7" in diagnosis.message
    assert not any("rank 1" in line for line in diagnosis.evidence)
