"""Patches of a script that resumes to the bit: each plants one bug, or changes it without any harm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("script.py")


@dataclass(frozen=True)
class Patch:
    """A change of the script; ``causes``: one of these names must be found, none for a harmless change."""

    name: str
    changes: tuple[tuple[str, str], ...]
    causes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ("kill",)
    ranks: int = 1
    noisy: bool = False
    """Two undisturbed runs differ: that this is noted is right."""

    @property
    def text(self) -> str:
        """Return the patched script. Every patch must apply."""
        text = SCRIPT.read_text()
        for old, new in self.changes:
            if old not in text:
                raise ValueError(f"{self.name}: {old!r} is not in the script")
            text = text.replace(old, new)
        return text


LOADED = "checkpoint = newest()\n"
SAFE = """        try:
            return torch.load(path, weights_only=False)
        except Exception as error:  # noqa: BLE001
            print(f"{path} cannot be read: {error}", file=sys.stderr, flush=True)
"""
BLIND = "        return torch.load(path, weights_only=False)\n"
ATOMIC = """            torch.save(state, path + ".part")
            os.replace(path + ".part", path)
"""
IN_PLACE = "            torch.save(state, path)\n"
MODEL = '        net.load_state_dict(checkpoint["model"])\n'
OPTIMIZER = '        optimizer.load_state_dict(checkpoint["optimizer"])\n'
SCHEDULER = '        scheduler.load_state_dict(checkpoint["scheduler"])\n'
SCALER = '        scaler.load_state_dict(checkpoint["scaler"])\n'
EMA = '        ema = checkpoint["ema"]\n'
STEP = '        step = checkpoint["step"]\n'
RESTORE = "                restore_random(states[RANK])\n"
LISTEN = "    signal.signal(signal.SIGUSR2, lambda *_: stop.append(1))\n"
OFTEN = "if step % EVERY == 0 or has_signal:"
ADAM = "torch.optim.Adam(model.parameters(), lr=0.01)"
STEPS = "torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)"
LAST_ONLY = """checkpoint = None
    if os.path.exists(f"{FOLDER}/last.pt"):
        checkpoint = torch.load(f"{FOLDER}/last.pt", weights_only=False)
"""
LAST_OR_NEWEST = """checkpoint = None
    try:
        checkpoint = torch.load(f"{FOLDER}/last.pt", weights_only=False)
    except Exception as error:
        print(f"last.pt cannot be read: {error}", file=sys.stderr, flush=True)
        checkpoint = newest()
"""
BOTH_IN_PLACE = IN_PLACE + '            torch.save(state, f"{FOLDER}/last.pt")\n'
BOTH_WHOLE = """            for name in (path, f"{FOLDER}/last.pt"):
                torch.save(state, name + ".part")
                os.replace(name + ".part", name)
"""
LINKED = (
    ATOMIC
    + """            if os.path.lexists(f"{FOLDER}/last.pt"):
                os.remove(f"{FOLDER}/last.pt")
            os.symlink(os.path.abspath(path), f"{FOLDER}/last.pt")
"""
)
TAKEN = (
    "class Points(Dataset):\n",
    'TAKEN = os.path.exists(f"{FOLDER}/last.pt")\n\n\nclass Points(Dataset):\n',
)
ANOTHER_NAME = """            torch.save(state, path + ".part")
            os.replace(path + ".part", f"{FOLDER}/last-v1.pt" if TAKEN else f"{FOLDER}/last.pt")
"""
META = (
    ATOMIC
    + """            with open(f"{FOLDER}/meta.json", "w") as file:
                __import__("json").dump({"step": step, "best_loss": 0.5}, file)
"""
)
META_WHOLE = META.replace('/meta.json", "w"', '/meta.new", "w"')
META_WHOLE += '            os.replace(f"{FOLDER}/meta.new", f"{FOLDER}/meta.json")\n'
READ_META = """checkpoint = None
    if os.path.exists(f"{FOLDER}/meta.json"):
        with open(f"{FOLDER}/meta.json") as file:
            at = __import__("json").load(file)["step"]
        checkpoint = torch.load(f"{FOLDER}/step-{at:06d}.pt", weights_only=False)
"""
READ_META_IF_WHOLE = """checkpoint = None
    try:
        with open(f"{FOLDER}/meta.json") as file:
            at = __import__("json").load(file)["step"]
        checkpoint = torch.load(f"{FOLDER}/step-{at:06d}.pt", weights_only=False)
    except (OSError, ValueError):
        checkpoint = newest()
"""
LATEST = (
    ATOMIC
    + """            with open(f"{FOLDER}/latest.txt", "w") as file:
                file.write(path)
"""
)
READ_LATEST = """checkpoint = None
    if os.path.exists(f"{FOLDER}/latest.txt"):
        path = open(f"{FOLDER}/latest.txt").read()
        if os.path.exists(path):
            checkpoint = torch.load(path, weights_only=False)
"""
HISTORY = (
    ATOMIC
    + """            with open("history.json", "w") as file:
                __import__("json").dump({"saved": step}, file)
"""
)
COPIED = ATOMIC + '            __import__("shutil").copyfile(path, f"{FOLDER}/last")\n'
EACH_RANK = (
    ('path = f"{FOLDER}/step-{step:06d}.pt"', 'path = f"{FOLDER}/rank{RANK}-step-{step:06d}.pt"'),
    ("    if RANK == 0:\n        try", "    if True:\n        try"),
    ('glob.glob(f"{FOLDER}/step-*.pt")', 'glob.glob(f"{FOLDER}/rank{RANK}-step-*.pt")'),
)

BACKWARD = "                scaler.scale(loss).backward()\n"
NOISE = (
    ("    data = Points()\n", "    data = Points()\n    noise = torch.Generator()\n    noise.seed()\n"),
    (BACKWARD, BACKWARD.replace("loss", "loss * (1 + 1e-2 * torch.rand((), generator=noise))")),
)

BUGS = (
    Patch("never loads", ((LOADED, "checkpoint = None\n"),), ("never-resumed",)),
    Patch("loads all but the model", ((MODEL, ""),), ("never-resumed",)),
    Patch("optimizer not loaded", ((OPTIMIZER, ""),), ("optimizer-not-restored",)),
    Patch(
        "optimizer not saved",
        ((OPTIMIZER, ""), ('"optimizer": optimizer.state_dict(),', "")),
        ("optimizer-not-restored",),
    ),
    Patch(
        "optimizer made again after loading",
        ((STEP, STEP + f"        optimizer = {ADAM}\n"),),
        ("optimizer-not-restored",),
    ),
    Patch(
        "scheduler not loaded", ((SCHEDULER, ""),), ("scheduler-not-restored", "learning-rate-not-restored")
    ),
    Patch(
        "scheduler not saved",
        ((SCHEDULER, ""), ('"scheduler": scheduler.state_dict(),', "")),
        ("scheduler-not-restored", "learning-rate-not-restored"),
    ),
    Patch(
        "learning rate set anew",
        ((STEP, STEP + '        optimizer.param_groups[0]["lr"] = 0.01\n'),),
        ("learning-rate-not-restored",),
    ),
    Patch("scaler not loaded", ((SCALER, ""),), ("scaler-not-restored",)),
    Patch(
        "scaler not saved", ((SCALER, ""), ('"scaler": scaler.state_dict(),', "")), ("scaler-not-restored",)
    ),
    Patch("averages not loaded", ((EMA, ""),), ("averages-not-restored",)),
    Patch(
        "averages begin at the loaded weights",
        ((EMA, "        ema = {k: v.clone() for k, v in net.state_dict().items() if k in ema}\n"),),
        ("averages-not-restored",),
    ),
    Patch(
        "buffers not saved",
        (
            ('"model": net.state_dict()', '"model": dict(net.named_parameters())'),
            (MODEL, MODEL.replace('["model"]', '["model"], strict=False')),
        ),
        ("buffers-not-restored",),
    ),
    Patch("no random state restored", ((RESTORE, "                pass\n"),), ("random-state-not-restored",)),
    Patch(
        "numpy's random state not restored",
        (('    numpy.random.set_state(states["numpy"])\n', ""),),
        ("random-state-not-restored",),
    ),
    Patch(
        "torch's random state not restored",
        (('    torch.set_rng_state(states["torch"])\n', ""),),
        ("random-state-not-restored",),
    ),
    Patch(
        "python's random state not restored",
        (('    random.setstate(states["python"])\n', ""),),
        ("random-state-not-restored",),
    ),
    Patch(
        "all ranks restore rank 0's random state",
        ((RESTORE, RESTORE.replace("RANK", "0")),),
        ("random-state-not-restored",),
        ranks=2,
    ),
    Patch(
        "the epoch begins anew",
        (("used = step - epoch * per_epoch", "used = 0"),),
        ("data-order-not-restored",),
    ),
    Patch(
        "all epochs begin anew",
        (
            ("range(step // per_epoch, EPOCHS)", "range(EPOCHS)"),
            ("used = step - epoch * per_epoch", "used = 0"),
        ),
        ("data-order-not-restored",),
    ),
    Patch(
        "set_epoch(0) after a restart",
        (("sampler.set_epoch(epoch)", "sampler.set_epoch(epoch if checkpoint is None else 0)"),),
        ("data-order-not-restored",),
    ),
    Patch("one step back", ((STEP, STEP.replace("]\n", "] - 1\n")),), ("data-order-not-restored",)),
    Patch("one step skipped", ((STEP, STEP.replace("]\n", "] + 1\n")),), ("data-order-not-restored",)),
    Patch(
        "the order hangs on the restart",
        (("seed=3", 'seed=3 + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))'),),
        ("data-order-not-restored",),
    ),
    Patch(
        "one file, written in place",
        (
            ('path = f"{FOLDER}/step-{step:06d}.pt"', 'path = f"{FOLDER}/step-last.pt"'),
            (ATOMIC, IN_PLACE),
            (SAFE, BLIND),
        ),
        ("torn-checkpoint-loaded",),
        ("mid-save",),
    ),
    Patch(
        "many files, written in place, the newest loaded",
        ((ATOMIC, IN_PLACE), (SAFE, BLIND)),
        ("torn-checkpoint-loaded",),
        ("mid-save",),
    ),
    Patch(
        "a full disk leaves half a file",
        ((ATOMIC, IN_PLACE), (SAFE, BLIND)),
        ("torn-checkpoint-loaded",),
        ("disk-full",),
    ),
    Patch(
        "a last file beside numbered ones, in place",
        ((ATOMIC, BOTH_IN_PLACE), (LOADED, LAST_ONLY)),
        ("torn-checkpoint-loaded",),
        ("mid-save",),
    ),
    Patch(
        "a last file beside numbered ones, in place, on a full disk",
        ((ATOMIC, BOTH_IN_PLACE), (LOADED, LAST_ONLY)),
        ("torn-checkpoint-loaded",),
        ("disk-full",),
    ),
    Patch(
        "a last file that is damaged, though numbered ones are whole",
        ((ATOMIC, BOTH_WHOLE), (LOADED, LAST_ONLY)),
        ("torn-checkpoint-loaded",),
        ("damaged",),
    ),
    Patch(
        "a link to the newest file, which is damaged",
        ((ATOMIC, LINKED), (LOADED, LAST_ONLY)),
        ("torn-checkpoint-loaded",),
        ("damaged",),
    ),
    Patch(
        "a link that a restart cannot make again",
        (TAKEN, (ATOMIC, LINKED.replace("if os", "if not TAKEN and os")), (LOADED, LAST_ONLY)),
        ("resumed-too-far-back",),
        ("twice",),
    ),
    Patch(
        "a restart saves under a name that no start reads",
        (TAKEN, (ATOMIC, ANOTHER_NAME), (LOADED, LAST_ONLY)),
        ("resumed-too-far-back",),
        ("twice",),
    ),
    Patch(
        "a copy without an ending, in place, of a whole numbered file",
        ((ATOMIC, COPIED), (LOADED, LAST_ONLY.replace("last.pt", "last"))),
        ("torn-checkpoint-loaded",),
        ("mid-save",),
    ),
    Patch("a damaged file is not passed over", ((SAFE, BLIND),), ("torn-checkpoint-loaded",), ("damaged",)),
    Patch("the oldest is loaded", ((", reverse=True", ""),), ("resumed-too-far-back",)),
    Patch("names sorted as text", (("step-{step:06d}.pt", "step-{step}.pt"),), ("resumed-too-far-back",)),
    Patch(
        "two writers",
        (("    if RANK == 0:\n        try", "    if True:\n        try"), (ATOMIC, IN_PLACE)),
        ("two-writers",),
        ("kill",),
        2,
    ),
    Patch(
        "two writers of one temporary name",
        (("    if RANK == 0:\n        try", "    if True:\n        try"),),
        ("two-writers",),
        ("kill",),
        2,
    ),
    Patch(
        "two writers of one temporary name, of which one raises",
        (
            ("    if RANK == 0:\n        try", "    if True:\n        try"),
            ("except (OSError, RuntimeError) as error", "except KeyError as error"),
        ),
        ("two-writers",),
        ("kill",),
        2,
    ),
    Patch(
        "writes by RANK and reads by LOCAL_RANK, which is 0 on each of two nodes",
        (
            *EACH_RANK,
            (
                'sorted(glob.glob(f"{FOLDER}/rank{RANK}-step-*.pt"), rev',
                'sorted(glob.glob(f"{FOLDER}/rank0-step-*.pt"), rev',
            ),
            ('"random": gathered(random_states())', '"random": [random_states()] * SIZE'),
        ),
        ("file-of-another-rank-loaded",),
        ("kill",),
        2,
    ),
    Patch(
        "meta.json is overwritten in place beside a whole checkpoint",
        ((ATOMIC, META), (LOADED, READ_META)),
        ("torn-checkpoint-loaded",),
        ("kill", "mid-save"),
    ),
    Patch(
        "latest.txt is overwritten in place, and a name that is cut off begins anew",
        ((ATOMIC, LATEST), (LOADED, READ_LATEST)),
        ("torn-checkpoint-loaded",),
        ("kill", "mid-save"),
    ),
    Patch(
        "the best file is loaded, though the last one is newer",
        (
            (
                ATOMIC,
                ATOMIC + '            if step < 10:\n                os.link(path, f"{FOLDER}/best.pt")\n',
            ),
            (LOADED, LAST_ONLY.replace("last.pt", "best.pt")),
        ),
        ("resumed-too-far-back",),
        ("kill",),
    ),
    Patch(
        "rank 1 saves half as often",
        (
            *EACH_RANK,
            ('            print(f"not saved', '            print(f"not saved'),
            (
                "def save(state, step):\n",
                "def save(state, step):\n    if RANK == 1 and step % 12 == 0:\n        return barrier()\n",
            ),
        ),
        ("ranks-resume-at-different-steps",),
        ("kill",),
        2,
    ),
    Patch(
        "the handler's flag is not tested",
        (("has_signal = max(gathered(len(stop)))", "has_signal = 0"),),
        ("notice-ignored",),
        ("time-limit",),
    ),
    Patch("no handler for the notice", ((LISTEN, ""),), ("notice-unheard",), ("time-limit",)),
    Patch(
        "ends at the notice without saving",
        ((OFTEN, "if step % EVERY == 0:"),),
        ("notice-without-save",),
        ("time-limit",),
    ),
    Patch(
        "a save that takes longer than the notice",
        (
            (
                "    if RANK == 0:\n        try",
                "    if RANK == 0:\n"
                "        if step % EVERY:\n            __import__('time').sleep(30)\n        try",
            ),
        ),
        ("save-slower-than-notice",),
        ("preemption",),
    ),
    Patch("old checkpoints stay", (('"checkpoints", 2,', '"checkpoints", 1000,'),), ("never-dropped",)),
    Patch(
        "saves only at the end", (('"checkpoints", 2, 6,', '"checkpoints", 2, 10000,'),), ("no-checkpoint",)
    ),
    Patch("loading raises", ((STEP, STEP.replace('"step"', '"steps"')),), ("restart-fails",)),
    Patch(
        "weights saved in half precision",
        (('"model": net.state_dict()', '"model": {k: v.half() for k, v in net.state_dict().items()}'),),
        ("parameters-not-restored",),
    ),
    Patch(
        "a layer is not saved",
        (
            (
                '"model": net.state_dict()',
                '"model": {k: v for k, v in net.state_dict().items() if k[0] != "4"}',
            ),
            (MODEL, MODEL.replace('["model"]', '["model"], strict=False')),
        ),
        ("parameters-not-restored",),
    ),
    Patch(
        "a layer is initialised after loading",
        ((STEP, STEP + "        net[4].reset_parameters()\n"),),
        ("parameters-not-restored",),
    ),
    Patch(
        "names of a wrapper, loaded without strict",
        (
            ('"model": net.state_dict()', '"model": {f"module.{k}": v for k, v in net.state_dict().items()}'),
            (MODEL, MODEL.replace('["model"]', '["model"], strict=False')),
        ),
        ("parameters-not-restored",),
        ("kill", "disk-full"),
    ),
    Patch(
        "a second network is not saved",
        (
            (
                "    for epoch in range(step //",
                "    target = __import__('copy').deepcopy(net).eval()\n    for epoch in range(step //",
            ),
            ("(model(x) - y)", "(model(x) - y + 0.1 * target(x).detach())"),
        ),
        ("averages-not-restored",),
    ),
    Patch(
        "a handler that saves in the middle of a step",
        (
            (
                "    data = Points()\n",
                "    def at_once(*_):\n"
                '        parts = {"model": net, "optimizer": optimizer}\n'
                '        parts |= {"scheduler": scheduler, "scaler": scaler}\n'
                "        state = {name: part.state_dict() for name, part in parts.items()}\n"
                '        more = {"ema": ema, "random": [random_states()], "step": step + 1}\n'
                "        save({**state, **more}, step + 1)\n"
                "        sys.exit(0)\n\n"
                "    signal.signal(signal.SIGUSR2, at_once)\n"
                "    data = Points()\n",
            ),
        ),
        ("data-order-not-restored", "scheduler-not-restored", "learning-rate-not-restored"),
        ("time-limit",),
    ),
)

NOISY_BUGS = (
    Patch(
        "noise, and the optimizer not loaded",
        (*NOISE, (OPTIMIZER, "")),
        ("optimizer-not-restored",),
        noisy=True,
    ),
    Patch(
        "noise, and the epoch begins anew",
        (*NOISE, ("used = step - epoch * per_epoch", "used = 0")),
        ("data-order-not-restored",),
        noisy=True,
    ),
    Patch(
        "noise, and other targets after a restart",
        (*NOISE, ("(model(x) - y)", "(model(x) - (y if checkpoint is None else 9 * y))")),
        ("undetermined",),
        noisy=True,
    ),
)
"""Scripts whose results differ in every run: a wrong load is still named, and bad losses are reported."""

ALL = ("kill", "mid-save", "time-limit", "damaged")
PLAIN = (
    ("nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1)", "nn.ReLU()"),
    (" + 0.01 * numpy.random.randn() + 0.01 * random.random()", ""),
)
CORRECT = (
    Patch("as it is", (), faults=ALL),
    Patch("two ranks", (), faults=ALL, ranks=2),
    Patch(
        "SGD with momentum",
        ((ADAM, "torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)"),),
        faults=ALL,
    ),
    Patch("SGD without state", ((ADAM, "torch.optim.SGD(model.parameters(), lr=0.01)"),), faults=ALL),
    Patch("AdamW", (("optim.Adam(", "optim.AdamW("),), faults=ALL),
    Patch("RMSprop", (("optim.Adam(", "optim.RMSprop("),), faults=ALL),
    Patch("Adagrad", (("optim.Adam(", "optim.Adagrad("),), faults=ALL),
    Patch("layer norm", (("nn.BatchNorm1d(64)", "nn.LayerNorm(64)"),), faults=ALL),
    Patch("no random numbers, none restored", (*PLAIN, (RESTORE, "                pass\n")), faults=ALL),
    Patch("cosine", ((STEPS, "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160)"),), faults=ALL),
    Patch(
        "one cycle",
        ((STEPS, "torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=200)"),),
        faults=ALL,
    ),
    Patch("scaler off", (('GradScaler("cpu", ', 'GradScaler("cpu", enabled=False, '),), faults=ALL),
    Patch(
        "bfloat16", (('autocast("cpu", enabled=False)', 'autocast("cpu", dtype=torch.bfloat16)'),), faults=ALL
    ),
    Patch(
        "a last file beside numbered ones, each moved to its name",
        ((ATOMIC, BOTH_WHOLE), (LOADED, LAST_OR_NEWEST)),
        faults=("kill", "after-save", "twice", "mid-save", "disk-full", "damaged"),
    ),
    Patch(
        "numbered files in place, of which a damaged one is passed over",
        ((ATOMIC, BOTH_IN_PLACE), (LOADED, LAST_OR_NEWEST)),
        faults=("mid-save", "disk-full", "damaged"),
    ),
    Patch(
        "each rank reads a file of its own",
        (*EACH_RANK, ('"random": gathered(random_states())', '"random": [random_states()] * SIZE')),
        faults=("kill", "time-limit"),
        ranks=2,
    ),
    Patch("keeps three", (('"checkpoints", 2,', '"checkpoints", 3,'),), faults=ALL),
    Patch("saves every fifth step", (('"checkpoints", 2, 6,', '"checkpoints", 2, 5,'),), faults=ALL),
    Patch(
        "averages in a module",
        (
            (
                "    data = Points()\n",
                "    shadow = torch.optim.swa_utils.AveragedModel(net)\n    data = Points()\n",
            ),
            (EMA, EMA + '        shadow.load_state_dict(checkpoint["shadow"])\n'),
            ('"ema": ema,', '"ema": ema,\n                    "shadow": shadow.state_dict(),'),
            (
                "                scheduler.step()\n",
                "                scheduler.step()\n                shadow.update_parameters(net)\n",
            ),
        ),
        faults=ALL,
    ),
    Patch(
        "workers load data",
        (("DataLoader(data,", "DataLoader(data, num_workers=1,"),),
        faults=("kill", "damaged"),
    ),
    Patch(
        "no DataLoader",
        (
            (
                "            loader = DataLoader("
                "data, batch_sampler=[indices], generator=torch.Generator().manual_seed(step))\n",
                "            pairs = [data[i] for i in indices]\n"
                "            loader = [tuple(map(torch.stack, zip(*pairs)))]\n",
            ),
        ),
        faults=ALL,
    ),
    Patch(
        "two steps of loss in one",
        (
            (
                "                scaler.scale(loss).backward()\n",
                "                scaler.scale(loss / 2).backward()\n"
                "                scaler.scale((model(x) - y).square().mean() / 2).backward()\n",
            ),
        ),
        faults=ALL,
    ),
    Patch(
        "frozen layer",
        (("    model = nn", "    net[0].weight.requires_grad_(False)\n    model = nn"),),
        faults=ALL,
    ),
    Patch("no averages", (("value.is_floating_point()}", "False}"),), faults=ALL),
    Patch(
        "weights limited after each step",
        (
            (
                "                scheduler.step()\n",
                "                scheduler.step()\n"
                "                [p.data.clamp_(-0.3, 0.3) for p in net.parameters()]\n",
            ),
        ),
        faults=(*ALL, "twice"),
    ),
    Patch(
        "a new optimizer for each epoch, saved at its end",
        (
            (
                "        used = step - epoch * per_epoch\n",
                "        used = step - epoch * per_epoch\n        optimizer = " + ADAM + "\n",
            ),
            (OPTIMIZER, ""),
            (SCHEDULER, ""),
            ("                scheduler.step()\n", ""),
            (OFTEN, "if step % per_epoch == 0:"),
        ),
        faults=("kill", "damaged", "twice"),
    ),
    Patch(
        "meta.json gets its name once it is whole",
        ((ATOMIC, META_WHOLE), (LOADED, READ_META)),
        faults=("kill", "mid-save"),
    ),
    Patch(
        "meta.json in place, and the newest checkpoint where it is cut off",
        ((ATOMIC, META), (LOADED, READ_META_IF_WHOLE)),
        faults=("kill", "mid-save"),
    ),
    Patch("a text in place that no restart reads", ((ATOMIC, HISTORY),), faults=("kill", "mid-save")),
    Patch("noise", NOISE, faults=ALL, noisy=True),
    Patch("noise, two ranks", NOISE, faults=ALL, ranks=2, noisy=True),
    Patch(
        "an order that is another one each time",
        (("seed=3", 'seed=int.from_bytes(os.urandom(2), "big")'),),
        faults=("kill", "damaged"),
        noisy=True,
    ),
)
