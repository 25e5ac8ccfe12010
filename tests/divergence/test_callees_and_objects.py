"""Ranks that diverge in callees and through objects: places among the ranks, groups of all ranks, text, checkpoints."""

import pathlib

import pytest
from test_mismatches import check

WRITER = """
        class Writer:
            def __init__(self, path, active):
                self.path = path
                self.active = active

            def write(self, x):
                if self.active:
                    dist.all_reduce(x)%s
"""

PARTING = {
    "an object of a framework that a function makes": """
        from lightning.fabric import Fabric

        def get_fabric(strategies, fabric):
            strategy = strategies[fabric.kind](device=fabric.device)
            other = Fabric(strategy=strategy)
            return other

        def play(fabric, model, strategies):
            player = get_fabric(strategies, fabric)
            if fabric.is_global_zero:
                player.setup_module(model)  # !implicit-collective
    """,
    "a backward through a wrapped model, too": """
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import DDPStrategy
        from torch.nn.parallel import DistributedDataParallel as DDP

        def learn(group, model, critic):
            fabric = Fabric(strategy=DDPStrategy(process_group=group))
            learner, wrapped = fabric.setup_module(model), DDP(critic)
            if dist.get_rank() > 0:
                out = learner(torch.ones(2, 4))
                loss = wrapped(out).mean()
                loss.backward()  # !optimizer-step
    """,
    "the backward of a wrapped model beside a plain one, and of one that another function gets": """
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel as DDP

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)

            def get_loss(self, batch):
                return {"loss": self.layer(batch).sum()}

        def build():
            return Net().cuda()

        def learn(batch):
            model = DDP(build())
            teacher = build()
            if dist.get_rank() == 0:
                target, (loss, _) = teacher(batch), model(batch)
                (loss - target).sum().backward()  # !optimizer-step

        def learn_prepared(batch, prepare):
            net, other = build(), DDP(build())
            prepare(net)
            if dist.get_rank() == 0:
                loss = net(batch)
                loss.sum().backward()  # !optimizer-step
    """,
    "an object of a framework whose strategy gets no group": """
        import hydra
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import DDPStrategy

        def learn(model):
            fabric = Fabric(strategy=DDPStrategy(process_group=None, broadcast_buffers=False))
            fabric.setup_module(model)

        def learn_configured(config, model):
            fabric = hydra.utils.instantiate(config.fabric, strategy=DDPStrategy())
            fabric.setup_module(model)

        def main(config, model):
            if dist.get_rank() > 0:
                learn(model)  # !implicit-collective
            if dist.get_rank() > 0:
                learn_configured(config, model)  # !implicit-collective
    """,
    "a list of functions and objects, more of them on one rank, of which the objects communicate": """
        class Meter:
            def sync(self, x):
                dist.all_reduce(x)

        def plain(x):
            return x

        def main(x):
            extensions = [plain, Meter()]
            if dist.get_rank() == 0:
                extensions.append(Meter())
                extensions.append(plain)
            for extension in extensions:
                if isinstance(extension, Meter):
                    extension.sync(x)  # !rank-branch
    """,
    "a method by a computed name, with nothing or another method as the default": """
        class Trainer:
            def on_save(self, x):
                dist.all_reduce(x)

            def run(self, kind, x):
                if dist.get_rank() == 0:
                    getattr(self, kind, None)(x)  # !rank-branch

            def other(self, kind, x):
                if dist.get_rank() == 0:
                    getattr(self, f"on_{kind}", self.on_save)(x)  # !rank-branch

        class Base:
            def run(self, kind, x):
                if dist.get_rank() == 0:
                    getattr(self, kind)(x)

        class Inheriting(Base):
            def on_save(self, x):
                dist.all_reduce(x)  # !rank-branch
    """,
    "a method by a name of which the beginning is written": """
        class Trainer:
            def sample_whole(self, x):
                dist.all_reduce(x)

            def show_whole(self, x):
                print(x)

            def run(self, kind, x):
                if dist.get_rank() == 0:
                    getattr(self, "sample_" + kind)(x)  # !rank-branch
                    getattr(self, "show_" + kind)(x)

            def named(self, kind, x):
                name = f"sample_{kind}"
                if dist.get_rank() == 0:
                    getattr(self, name)(x)  # !rank-branch
                    getattr(self, f"show_{kind}")(x)
    """,
    "a dictionary or a tuple with the test in it, given to a function": """
        def by_key(x):
            settings = {"saves": dist.get_rank() == 0, "rate": 1}
            run(x, settings)  # !rank-branch

        def run(x, given):
            if given["saves"]:
                dist.all_reduce(x)

        def by_place(x):
            follow(x, (dist.get_rank() == 0, 1))  # !rank-branch

        def follow(x, given):
            if given[0]:
                dist.all_reduce(x)

        def by_get(x):
            settings = {"logs": dist.get_rank() == 0}
            if settings.get("logs", False):
                dist.all_reduce(x)  # !rank-branch
    """,
    "a namespace or a data class that is made with the test, given to a function": """
        import dataclasses
        import types

        @dataclasses.dataclass
        class Settings:
            saves: bool = False
            rate: float = 0.1

        def by_class(x):
            runs(x, Settings(saves=dist.get_rank() == 0))  # !rank-branch

        def runs(x, settings):
            if settings.rate > 0:
                dist.all_reduce(x)
            if settings.saves:
                dist.all_reduce(x)

        def by_namespace(x):
            settings = types.SimpleNamespace(saves=dist.get_rank() == 0)
            if settings.saves:
                dist.all_reduce(x)  # !rank-branch
    """,
    "an attribute or an entry of what a function is given, set before it is passed on": """
        def by_attribute(x, settings):
            settings.saves = dist.get_rank() == 0
            passes_on(x, settings)  # !rank-branch

        def passes_on(x, given):
            saves(x, given)

        def saves(x, given):
            if given.saves:
                dist.all_reduce(x)

        def by_key(x, settings):
            settings["logs"] = dist.get_rank() == 0
            logs(x, settings)  # !rank-branch

        def logs(x, given):
            if given["logs"]:
                dist.all_reduce(x)
    """,
    "a test that a constructor is given, whatever the parameter is called": WRITER % "  # !rank-branch"
    + """
        def train(x):
            writer = Writer("runs", dist.get_rank() == 0)
            writer.write(x)
    """,
    "functions within a method, which are not called with its object": """
        class Trainer:
            def save(self, x):
                def wait(flag):
                    if flag:
                        dist.barrier()  # !rank-branch

                reduce = lambda flag: dist.all_reduce(x) if flag else None  # !rank-branch
                wait(dist.get_rank() == 0)
                reduce(dist.get_rank() == 0)
    """,
    "what a rank's own batch decides where rank 0 alone comes": """
        def f(loader, x):
            if dist.get_rank() == 0:
                for batch in loader:
                    if batch.sum() > 0:
                        dist.all_reduce(x)  # !rank-branch
    """,
    "what rank 0 alone decides by its clock, where the others make the call in a caller": """
        class Trainer:
            def check(self):
                reason = None
                if dist.get_rank() == 0 and time.time() > self.limit:
                    reason = "time"
                if reason is not None:
                    dist.broadcast(self.x, 0)  # !data-condition

            def fit(self):
                for batch in self.loader:
                    self.check()
                    if dist.get_rank() != 0:
                        dist.broadcast(self.x, 0)  # !rank-branch
    """,
    "a generator over a rank's share": """
        def parts(items):
            for item in items[dist.get_rank()::dist.get_world_size()]:
                yield item

        def run(items, model):
            for item in parts(items):
                dist.all_reduce(model(item))  # !loop-count
    """,
    "a generator that skips what falls to other ranks": """
        def parts(items):
            for i, item in enumerate(items):
                if i % dist.get_world_size() != dist.get_rank():
                    continue
                yield item

        def run(items, model):
            for item in parts(items):
                dist.all_reduce(model(item))  # !rank-branch
    """,
    "the number that spawn gives a process": """
        import torch.multiprocessing as mp

        def work(gpu, args):
            args.gpu = gpu
            dist.init_process_group("nccl", rank=args.node * args.gpus + gpu, world_size=args.world)
            if args.gpu == 0:
                dist.barrier()  # !rank-branch

        def main(args):
            mp.spawn(work, nprocs=args.gpus, args=(args,))
    """,
    "the number that a process joins with": """
        class Worker:
            def __init__(self, index, size):
                self.index = index
                dist.init_process_group("gloo", rank=index, world_size=size)

            def report(self, x):
                dist.all_reduce(x)

        def work(proc_id, devices, x):
            dist.init_process_group("nccl", rank=proc_id, world_size=len(devices))
            if proc_id != 0:
                return
            dist.all_reduce(x)  # !rank-branch
    """,
    "pairs made of a set": """
        import itertools

        def main(modules, names):
            for module, name in itertools.product(set(modules), names):
                dist.all_reduce(getattr(module, name))  # !order
            for module, name in zip(set(modules), names):
                dist.all_reduce(getattr(module, name))  # !order
    """,
    "the first rank along an axis, in the groups along that axis": """
        def main(mesh, x):
            if mesh.get_local_rank("dp") == 0:
                dist.all_reduce(x, group=mesh.get_group("dp"))  # !rank-branch
    """,
    "the first rank of a part of a mesh, in the groups of that part": """
        def main(mesh, x):
            if mesh["dp"].get_local_rank() == 0:
                dist.all_reduce(x, group=mesh["dp"].get_group())  # !rank-branch
    """,
    "a place among the ranks that an attribute holds, in a method that another one calls": """
        class Writer:
            def __init__(self, size):
                self.is_last = dist.get_rank() in (-1, size - 1)

            def flush(self):
                if self.is_last:
                    dist.barrier()  # !rank-branch

            def close(self):
                self.flush()
    """,
    "a helper that leaves members alone in making a group": """
        def group_of(ranks):
            if dist.get_rank() not in ranks:
                return None
            return dist.new_group(ranks)  # !new-group

        def build(world, size):
            return [group_of(list(range(start, start + size))) for start in range(0, world, size)]
    """,
    "a broadcast from oneself in a function that is called": """
        def share(chosen):
            dist.broadcast(chosen, src=dist.get_rank())  # !argument
            return chosen

        def main(chosen):
            return share(chosen)
    """,
    "orders of two halves of a group of all ranks": """
        def main(weights, stats):
            group = dist.new_group(list(range(dist.get_world_size())), backend="gloo")
            if dist.get_rank() < dist.get_world_size() // 2:
                dist.broadcast(weights, src=0, group=group)  # !order
                dist.all_reduce(stats, group=group)
            else:
                dist.all_reduce(stats, group=group)
                dist.broadcast(weights, src=0, group=group)
    """,
    "orders of two halves of a group that is given no ranks": """
        def main(weights, stats):
            group = dist.new_group(backend="gloo")
            if dist.get_rank() < dist.get_world_size() // 2:
                dist.broadcast(weights, src=0, group=group)  # !order
                dist.all_reduce(stats, group=group)
            else:
                dist.all_reduce(stats, group=group)
                dist.broadcast(weights, src=0, group=group)
    """,
    "an object that reduces where it becomes text": """
        class Meter:
            def __init__(self):
                self.total = torch.zeros(1)

            def __str__(self):
                dist.all_reduce(self.total)
                return f"{self.total.item():.3f}"

        def report(losses):
            meter = Meter()
            if dist.get_rank() == 0:
                print(f"loss {meter}")  # !rank-branch
    """,
    "an object that reduces where it is printed": """
        class Meter:
            def __repr__(self):
                dist.all_reduce(self.total)
                return str(self.total)

        def report(losses):
            meter = Meter()
            if dist.get_rank() == 0:
                print("loss", meter)  # !rank-branch
    """,
    "an exception in the writer of a checkpoint, which torch catches": """
        from torch.distributed.checkpoint import FileSystemWriter

        class Uploading(FileSystemWriter):
            def write_data(self, plan, planner):
                try:
                    self.bucket.upload(plan)
                except Exception:
                    print("upload failed")
                    raise
                dist.barrier()  # !data-condition
    """,
    "the trainer of transformers by its name": """
        from transformers import TrainerCallback, TrainingArguments

        ARGUMENTS = TrainingArguments("out", fsdp="full_shard")

        class SaveBest(TrainerCallback):
            def __init__(self, trainer):
                self.trainer = trainer

            def on_evaluate(self, args, state, control, **kwargs):
                if state.is_world_process_zero:
                    self.trainer.save_model(args.output_dir)  # !implicit-collective
    """,
    "a key that another method adds on the last rank": """
        from collections import defaultdict

        class Stats:
            def __init__(self):
                self.sums = defaultdict(list)
                self.is_last = dist.get_rank() == dist.get_world_size() - 1

            def add(self, batch, loss):
                self.sums["tokens"].append(batch.numel())
                if self.is_last:
                    self.sums["loss"].append(loss.item())

            def reduce(self):
                for name, values in sorted(self.sums.items()):
                    dist.all_reduce(torch.tensor(values))  # !loop-count
    """,
    "a key that another method adds where the batch has labels": """
        class Stats:
            def __init__(self):
                self.sums = {}

            def add(self, batch, loss):
                self.sums["tokens"] = batch["labels"].numel()
                if (batch["labels"] != -100).any():
                    self.sums["loss"] = loss

            def reduce(self):
                for name in sorted(self.sums):
                    dist.all_reduce(self.sums[name])  # ?loop-count
    """,
    "a list that grows in the rounds that a rank does not skip": """
        def evaluate(model, loader):
            losses = []
            for batch in loader:
                valid = batch["label"] >= 0
                if valid.sum() == 0:
                    continue
                losses.append(model(batch["image"])[valid].mean())
            if len(losses) == 0:
                return 0.0
            dist.all_reduce(torch.stack(losses).mean())  # !data-condition
    """,
    "an element of a list of objects": """
        class Mean:
            def get(self):
                dist.all_reduce(self.total)
                return self.total

        class Last:
            def get(self):
                return self.value

        class Metrics:
            def __init__(self):
                self.parts: list = [Last(), Mean()]

            def logs(self):
                return [part.get() for part in self.parts]

        def report():
            metrics = Metrics()
            if dist.get_rank() == 0:
                print(metrics.logs())  # !rank-branch
    """,
    "an entry of a dictionary of objects": """
        class Mean:
            def get(self):
                dist.all_reduce(self.total)
                return self.total

        class Metrics:
            def __init__(self):
                self.parts = {"loss": Mean(), "error": Mean()}

            def logs(self):
                found = {}
                for name, part in self.parts.items():
                    found[name] = part.get()
                return found

        def report():
            metrics = Metrics()
            if dist.get_rank() == 0:
                print(metrics.logs())  # !rank-branch
    """,
    "an object that only the annotation of a function shows": """
        class Other:
            def mean(self, x):
                return x

        class Ranks:
            @classmethod
            def instance(cls) -> "Ranks":
                global RANKS
                if RANKS is None:
                    RANKS = cls()
                return RANKS

            def mean(self, x):
                dist.all_reduce(x)
                return x

        RANKS = None

        class Meter:
            def __init__(self):
                self.ranks = Ranks.instance()

            def get(self):
                return self.ranks.mean(self.total)

        def report():
            meter = Meter()
            if dist.get_rank() == 0:
                print(meter.get())  # !rank-branch
    """,
    "a program of two roles, one of which lacks a call of the other or makes none at all": """
        def scatter(state, names):
            if dist.get_rank() == 0:
                for value in state.values():
                    dist.broadcast(value, 0)  # !rank-branch
            else:
                for name in names:
                    if dist.get_rank() == 0:
                        dist.broadcast(torch.empty(1), 0)

        def share(state, names):
            if dist.get_rank() == 0:
                for value in state.values():
                    dist.broadcast(value, 0)  # !rank-branch
                    dist.barrier()
            else:
                for name in names:
                    dist.barrier()
    """,
    "a property that can be set, which is no method": """
        class State:
            def __init__(self):
                self._done = False

            @property
            def done(self):
                return self._done

            @done.setter
            def done(self, value):
                self._done = value

        def reduce(state: State, x):
            if not state.done and dist.get_rank() == 0:
                dist.all_reduce(x)  # !rank-branch
    """,
    "a setting that is none of those which a chain lists, in the last arm of it": """
        def reduce(backend, x, known):
            if backend == "none":
                return
            if backend == "mpi":
                pass
            elif backend in known:
                if dist.get_rank() == 0:
                    dist.all_reduce(x)  # !rank-branch
    """,
    "a variable of the module that a function rebinds under a test": """
        USES = False

        def start(args):
            if args.uses:
                global USES
                USES = True

        def reduce(x):
            if USES and dist.get_rank() == 0:
                dist.all_reduce(x)  # !rank-branch
    """,
    "objects that one rank alone has in its list": """
        class Timer:
            def after(self):
                pass

        class Saver:
            def after(self):
                dist.barrier()

        def wait():
            dist.barrier()

        def build():
            hooks = [Timer()]
            if dist.get_rank() == 0:
                hooks.append(Saver())
            return hooks

        def added(more):
            hooks = [Timer(), Timer()]
            if dist.get_rank() == 0:
                hooks += [Saver()]
            for hook in hooks:
                hook.after()  # !rank-branch

        def of_two_lists():
            hooks = [Timer(), Saver()] if dist.get_rank() == 0 else [Timer()]
            [hook.after() for hook in hooks]  # !rank-branch

        def called():
            finish = []
            if dist.get_rank() == 0:
                finish.append(wait)
            for each in finish:
                each()  # !rank-branch

        class Trainer:
            def __init__(self):
                self.hooks = [Timer()]
                if dist.get_rank() == 0:
                    self.hooks.append(Saver())

            def run(self):
                for number, hook in enumerate(self.hooks):
                    hook.after()  # !rank-branch

        class Runner:
            def __init__(self, hooks):
                self.hooks = hooks

            def run(self):
                for hook in self.hooks:
                    hook.after()  # !rank-branch

        def main():
            Runner(build()).run()

        def rounds():
            hooks = [Timer()]
            if dist.get_rank() == 0:
                hooks.append(Timer())
            for hook in hooks:
                hook.after()
                dist.barrier()  # !loop-count
    """,
    "a flag that a dataclass is made with, or that a dictionary gives": """
        import dataclasses

        @dataclasses.dataclass
        class Settings:
            path: str
            verbose: bool

        class Trainer:
            def __init__(self, path):
                self.settings = Settings(path, dist.get_rank() == 0)

            def log(self, x):
                if self.settings.verbose:
                    dist.all_reduce(x)  # !rank-branch

        def report(settings: Settings, x):
            if settings.verbose:
                dist.all_reduce(x)  # !rank-branch

        def save(x):
            options = {"path": "x", "write": dist.get_rank() == 0}
            if options.get("write"):
                dist.all_reduce(x)  # !rank-branch
    """,
    "what a helper that runs its argument on one rank is given": """
        def reduce(x):
            dist.all_reduce(x)
            return x

        def on_first(function, *args):
            if dist.get_rank() == 0:
                return function(*args)

        def leaving(function):
            if dist.get_rank() != 0:
                return None
            return function()

        def through(function, x):
            log(x)
            return inner(function, x)

        def inner(function, x):
            if dist.get_rank() == 0:
                function(x)

        def log(x):
            print(x)

        def of_a_function(x):
            on_first(reduce, x)  # !rank-branch

        def of_a_lambda(x):
            leaving(lambda: reduce(x))  # !rank-branch

        def of_what_is_passed_on(x):
            through(reduce, x)  # !rank-branch

        class Trainer:
            def save(self):
                dist.barrier()

            def on_main(self, function):
                if self.rank == 0:
                    function()

            def run(self):
                self.on_main(self.save)  # !rank-branch
    """,
}

EQUAL = {
    "the backward of a model that a helper makes beside the wrapped one, and of what is inside the wrapped one": """
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel as DDP

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)

            def get_loss(self, batch):
                return {"loss": self.layer(batch).sum()}

        def build():
            return Net().cuda()

        def compare(batch):
            model = DDP(build())
            _, loss = model(batch)
            loss.backward()
            if dist.get_rank() == 0:
                reference = build()
                _, expected = reference(batch)
                expected.backward()
                print(reference)

        def learn(batch):
            model = DDP(build())

            def step():
                losses = model.module.get_loss(batch)
                total = sum(losses.values())
                total.backward()

            if dist.get_rank() == 0:
                step()
    """,
    "the backward of a layer of torch.nn that a helper makes, and trains on one rank alone": """
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel as DDP

        def build():
            return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

        def pretrain(path):
            net = build()
            optimizer = torch.optim.Adam(net.parameters())
            for _ in range(3):
                net(torch.randn(4, 4)).sum().backward()
                optimizer.step()
            torch.save(net.state_dict(), path)

        def learn(path, batch):
            if dist.get_rank() == 0:
                pretrain(path)
                probe = nn.Linear(4, 1)
                probe(batch).sum().backward()
            dist.barrier()
            model = DDP(build())
            model(batch).sum().backward()
    """,
    "an object of a framework whose strategy gets a group": """
        import hydra
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import DDPStrategy

        def learn(group, model):
            fabric = Fabric(strategy=DDPStrategy(process_group=group))
            learner = fabric.setup_module(model)
            out = learner(torch.ones(2, 4))
            torch.nn.functional.mse_loss(out, torch.zeros_like(out)).backward()

        def learn_configured(config, group, model):
            fabric = hydra.utils.instantiate(config.fabric, strategy=DDPStrategy(process_group=group), _convert_="all")
            fabric.setup_module(model)

        def main(config, model):
            learners = dist.new_group(list(range(1, dist.get_world_size())))
            if dist.get_rank() > 0:
                learn(learners, model)
                learn_configured(config, learners, model)
    """,
    "an object of a framework that a function makes for one device": """
        from lightning.fabric import Fabric

        def get_single_device_fabric(strategies, fabric):
            strategy = strategies[fabric.kind](device=fabric.device)
            single = Fabric(strategy=strategy)
            return single

        def play(fabric, model, strategies):
            player = get_single_device_fabric(strategies, fabric)
            if fabric.is_global_zero:
                player.setup_module(model)
    """,
    "an object by a computed name, itself by default; a constructor that no computed name means": """
        class Net(torch.nn.Module):
            prefix = "model"

            def sync(self, x):
                dist.all_reduce(x)

            @property
            def inner(self):
                return getattr(self, self.prefix, self)

            def save(self, x):
                if dist.get_rank() == 0:
                    self.inner(x)
                    getattr(self, self.prefix, self)(x)

        class Base:
            def run(self, kind, x):
                if dist.get_rank() == 0:
                    getattr(self, kind)(x)

        class Joined(Base):
            def __init__(self):
                dist.barrier()
    """,
    "dictionaries, attributes and flags that all ranks share": WRITER % ""
    + """
        def train(x, options):
            settings = {"first": dist.get_rank() == 0, "saves": options.saves}
            options.first = dist.get_rank() == 0
            options.logs = options.level > 1
            Writer("runs", dist.get_rank() == 0)
            Writer("runs", options.level > 1).write(x)
            run(x, settings, options)

        def run(x, given, options):
            if given["saves"] or options.logs or given.get("others"):
                dist.all_reduce(x)
    """,
    "a function within a method that is given each of all ranks": """
        class Edge:
            def __init__(self, one, other):
                self.group = dist.new_group([one, other])

        class Ring:
            def __init__(self, number):
                self.number = number
                self.known = [[] for _ in range(number)]

            def connect(self):
                def add(rank, peers):
                    for peer in peers:
                        if peer not in self.known[rank]:
                            self.known[rank].append(Edge(rank, peer))

                for rank in range(self.number):
                    add(rank, [rank - 1, rank + 1])
    """,
    "generators that all ranks go through equally often": """
        import contextlib
        from torch.utils.data import DataLoader, DistributedSampler

        def moved(loader, every):
            for i, batch in enumerate(loader):
                if i % every:
                    continue
                yield batch.cuda()

        @contextlib.contextmanager
        def noted():
            if dist.get_rank() == 0:
                print("begins")
            yield
            if dist.get_rank() == 0:
                print("ends")

        def run(dataset, model, every):
            loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
            for batch in moved(loader, every):
                dist.all_reduce(model(batch))
            with noted():
                dist.barrier()
    """,
    "numbers that say no rank": """
        import torch.multiprocessing as mp

        def work(gpu, stage, args):
            dist.init_process_group("nccl", rank=args.node + gpu, world_size=args.world)
            if stage == 0:
                dist.barrier()
            if gpu is not None:
                dist.barrier()

        def serve(index, size, x):
            dist.init_process_group("gloo", rank=0, world_size=size)
            if index == 0:
                dist.all_reduce(x)

        def main(args):
            mp.spawn(work, nprocs=args.gpus, args=(args.stage, args))
    """,
    "pairs made of a sorted set": """
        import itertools

        def main(modules, names):
            for module, name in itertools.product(sorted(set(modules)), names):
                dist.all_reduce(getattr(module, name))
    """,
    "the first rank along one axis, in the groups along the other": """
        def main(mesh, x):
            if mesh.get_local_rank("tp") == 0:
                dist.all_reduce(x, group=mesh.get_group("dp"))
            if mesh["tp"].get_local_rank() == 0:
                dist.all_reduce(x, group=mesh["dp"].get_group())
    """,
    "a caller makes up for the place among the ranks": """
        def flush(rank, ranks):
            if rank not in ranks:
                return
            dist.barrier()

        def close(ranks):
            if dist.get_rank() in ranks:
                flush(dist.get_rank(), ranks)
            else:
                dist.barrier()
    """,
    "orders of two halves that have groups of their own": """
        def main(weights, stats, ranks):
            group = dist.new_group(ranks)
            if dist.get_rank() < dist.get_world_size() // 2:
                dist.broadcast(weights, src=0, group=group)
                dist.all_reduce(stats, group=group)
            else:
                dist.all_reduce(stats, group=group)
                dist.broadcast(weights, src=0, group=group)
    """,
    "a model that one rank builds for itself": """
        import torch.nn as nn

        class Net(nn.Module):
            def forward(self, x, group=None):
                if self.is_parallel:
                    dist.all_reduce(x, group=group)
                return x

        class Config:
            def build(self) -> Net:
                return make(self)

        def convert(config: Config, x):
            if dist.get_rank() == 0:
                net = config.build()
                net(x)
    """,
    "elements of a list none of which is of the class that reduces": """
        class Mean:
            def get(self):
                dist.all_reduce(self.total)
                return self.total

        class Last:
            def get(self):
                return self.value

        class Metrics:
            def __init__(self):
                self.parts = [Last(), Last()]
                self.mean = Mean()

            def logs(self):
                return [part.get() for part in self.parts]

        def report():
            metrics = Metrics()
            print(metrics.mean.get())
            if dist.get_rank() == 0:
                print(metrics.logs())
    """,
    "text that is made on all ranks and printed on one": """
        class Meter:
            def __str__(self):
                dist.all_reduce(self.total)
                return f"{self.total.item():.3f}"

        def report(losses):
            meter = Meter()
            text = str(meter)
            if dist.get_rank() == 0:
                print(f"loss {text}")
    """,
    "ranks that exchange their errors before they raise": """
        from torch.distributed.checkpoint import FileSystemWriter

        class Uploading(FileSystemWriter):
            def write_data(self, plan, planner):
                failed = torch.zeros(1)
                try:
                    self.bucket.upload(plan)
                except Exception:
                    failed += 1
                dist.all_reduce(failed)
                if failed.item():
                    raise RuntimeError("a rank could not upload")
                dist.barrier()
    """,
    "an exception that ends the rank": """
        class Uploading:
            def write_data(self, plan, planner):
                try:
                    self.bucket.upload(plan)
                except Exception:
                    print("upload failed")
                    raise
                dist.barrier()
    """,
    "a trainer of another framework": """
        from lightning.pytorch import Callback
        from lightning.fabric.strategies import FSDPStrategy

        class SaveBest(Callback):
            def __init__(self, trainer):
                self.trainer = trainer

            def on_fit_end(self, trainer, module):
                if trainer.is_global_zero:
                    self.trainer.save_model("best")
    """,
    "one key on all ranks by both arms": """
        class Stats:
            def __init__(self):
                self.sums = {}
                self.is_last = dist.get_rank() == dist.get_world_size() - 1

            def add(self, batch, loss):
                self.sums["tokens"] = batch.numel()
                if self.is_last:
                    self.sums["loss"] = loss
                else:
                    self.sums["loss"] = torch.zeros(1)

            def reduce(self):
                for name in sorted(self.sums):
                    dist.all_reduce(self.sums[name])
    """,
    "a key that the configuration decides on": """
        class Stats:
            def __init__(self, config):
                self.sums = {}
                self.config = config

            def add(self, batch, loss):
                self.sums["tokens"] = batch.numel()
                if self.config.track_loss:
                    self.sums["loss"] = loss

            def reduce(self):
                for name in sorted(self.sums):
                    dist.all_reduce(self.sums[name])
    """,
    "rounds that all ranks skip": """
        def evaluate(model, loader, config):
            losses = []
            for number, batch in enumerate(loader):
                if number % config.every:
                    continue
                losses.append(model(batch["image"]).mean())
            if len(losses) == 0:
                return 0.0
            dist.all_reduce(torch.stack(losses).mean())
    """,
    "a program of two roles that make the same calls in other loops": """
        def serve(state, x):
            if dist.get_rank() == 0:
                for value in state:
                    dist.broadcast(value, 0)
                    dist.barrier()
            else:
                while True:
                    dist.broadcast(x, 0)
                    dist.barrier()
                    if x.min() < 0:
                        break
    """,
    "objects that one rank alone has in its list, which do nothing with the others, or that another rank has, too": """
        class Timer:
            def after(self):
                pass

        class Saver:
            def after(self):
                dist.barrier()

        def quiet():
            hooks = [Saver()]
            if dist.get_rank() == 0:
                hooks.append(Timer())
            for hook in hooks:
                hook.after()

        def shorter():
            hooks = [Saver(), Timer()]
            if dist.get_rank() != 0:
                hooks = [Saver()]
            for hook in hooks:
                hook.after()

        def both():
            hooks = []
            if dist.get_rank() == 0:
                hooks.append(Saver())
                hooks.append(Timer())
            else:
                hooks.append(Saver())
            for hook in hooks:
                hook.after()

        def on_all(args):
            hooks = [Timer()]
            if args.save:
                hooks.append(Saver())
            for hook in hooks:
                hook.after()
    """,
    "a flag that a dataclass is made with, by the rank in one place and alike in another": """
        import dataclasses

        @dataclasses.dataclass
        class Settings:
            path: str
            verbose: bool = False
            strict: bool = False

        def of_rank(path):
            return Settings(path, dist.get_rank() == 0, strict=True)

        def of_all(path):
            return Settings(path, verbose=True, strict=True)

        def report(settings: Settings, x):
            if settings.verbose or settings.strict:
                dist.all_reduce(x)
            options = {"path": dist.get_rank(), "write": True}
            if options.get("write"):
                dist.all_reduce(x)
    """,
    "a helper that runs its argument on one rank before the others, or one that communicates nothing": """
        def reduce(x):
            dist.all_reduce(x)

        def first(function, x):
            if dist.get_rank() == 0:
                function(x)
            dist.barrier()
            if dist.get_rank() != 0:
                function(x)

        def on_first(function, x):
            if dist.get_rank() == 0:
                function(x)

        def download(path):
            torch.save(path, path)

        def on_all(function, x):
            if dist.get_rank() == 0:
                print(x)
            function(x)

        def run(path, x):
            first(download, path)
            on_first(download, path)
            on_all(reduce, x)
    """,
}


@pytest.mark.parametrize("source", PARTING.values(), ids=PARTING)
def test_ranks_part(source: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, source)


@pytest.mark.parametrize("source", EQUAL.values(), ids=EQUAL)
def test_ranks_are_equal(source: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, source)
