"""Ranks that diverge by what methods leave in objects, and by models that are wrapped in one of several ways."""

import pathlib

import pytest
from test_mismatches import check

WRAPPING = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
        from torch.nn.parallel import DistributedDataParallel as DDP

        def wrap(model, args):
            if args.fsdp:
                model = FSDP(model)
            else:
                model = DDP(model)
            return model
"""

PARTING = {
    "a time that is added to a number": """
        import time

        def main(x, read, start):
            stored = read(start + int(time.time()))
            for _ in range(stored, 10):
                dist.all_reduce(x)  # !loop-count
    """,
    "a rank that fails behind a loop in which it waits": """
        def main(x, rank):
            for _ in range(rank + 1):
                dist.all_reduce(x)  # !loop-count
            if rank != 0:
                raise RuntimeError("written for one process")
    """,
    "a hook that the only trainer of the project puts itself into": """
        from torch.distributed.fsdp import FullyShardedDataParallel

        class Sample:
            def after_epoch(self):
                if dist.get_rank() == 0:
                    print(self.trainer.model(torch.ones(1)))  # !one-rank-forward

        def show(trainer, x):
            if dist.get_rank() == 0:
                print(trainer.model(x))  # !one-rank-forward

        class Trainer:
            def __init__(self, model):
                self.model = FullyShardedDataParallel(model)

            def register(self, hook):
                hook.trainer = self
    """,
    "a rank that only large jobs have always fails": """
        def main(x, rank):
            if rank == 8:
                raise RuntimeError("written for one node")
            if rank == 0:
                dist.all_reduce(x)  # !rank-branch
    """,
    "a loop that a flag ends after some rounds": """
        def main(rank, flag):
            for shard in list(range(8))[rank :: dist.get_world_size()]:
                dist.barrier()  # !loop-count
                if flag:
                    break
    """,
    "a flag that a method sets on one rank": """
        class Trainer:
            def __init__(self):
                self.rank = dist.get_rank()
                self.stop = False

            def check(self, loss):
                if self.rank == 0 and loss < 1:
                    self.stop = True

            def train(self, loader):
                for x in loader:
                    dist.all_reduce(x)  # !loop-count
                    self.check(x.mean())
                    if self.stop:
                        break
    """,
    "a flag that a method sets after the other ranks have returned": """
        class Trainer:
            def __init__(self):
                self.rank = dist.get_rank()
                self.stop = False

            def check(self, loss):
                if self.rank != 0:
                    return
                if loss < 1:
                    self.stop = True

            def train(self, x):
                self.check(x.mean())
                if self.stop:
                    return
                dist.all_reduce(x)  # !rank-branch
    """,
    "a counter that rank 0 resets in an object that it is given": """
        class State:
            def __init__(self, rank):
                self.rank = rank
                self.epochs_since_best = 0

        def update(state, metric):
            if state.rank != 0:
                return
            state.epochs_since_best = 0

        def goes_on(state):
            return state.epochs_since_best < 3

        def train(loader, model):
            state = State(dist.get_rank())
            while goes_on(state):
                state.epochs_since_best += 1
                for x in loader:
                    dist.all_reduce(x)  # !rank-branch
                update(state, x)
    """,
    "a model that is sharded or replicated": f"""{WRAPPING}
        def main(net, args):
            model = wrap(net, args)
            if dist.get_rank() == 0:
                torch.save(model.state_dict(), "x.pt")  # !implicit-collective
    """,
    "one of three ways": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.nn.parallel import DistributedDataParallel as DDP

        def main(model, args):
            if args.ddp:
                model = DDP(model)
            elif args.fsdp:
                model = FSDP(model)
            if dist.get_rank() == 0:
                torch.save(model.state_dict(), "x.pt")  # !implicit-collective
    """,
    "an attribute that is sharded or replicated": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.nn.parallel import DistributedDataParallel as DDP

        class Trainer:
            def __init__(self, model, config):
                self.rank = dist.get_rank()
                if config.fsdp:
                    self.model = FSDP(model)
                else:
                    self.model = DDP(model)

            def save(self):
                if self.rank == 0:
                    torch.save(self.model.state_dict(), "x.pt")  # !implicit-collective
    """,
    "an attribute that another method shards": """
        from torch.distributed.fsdp import fully_shard

        class Trainer:
            def __init__(self, config):
                self.rank = dist.get_rank()
                self.model = build(config)
                self.shard()

            def shard(self):
                fully_shard(self.model)

            def look(self, x):
                if self.rank == 0:
                    self.model(x)  # !one-rank-forward
    """,
    "a model that is given wrapped": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Trainer:
            def __init__(self, model):
                self.model = model

            def look(self, x):
                if dist.get_rank() == 0:
                    self.model(x)  # !one-rank-forward

        def main(net):
            model = FSDP(net)
            Trainer(model).look(1)
    """,
    "a model that another method shards": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Trainer:
            def __init__(self, config):
                self.model = build(config)
                self.parallelize(config)
                self.checkpoint = Checkpoint(self)

            def parallelize(self, config):
                if config.fsdp:
                    self.model = FSDP(self.model)

            def save(self):
                if dist.get_rank() == 0:
                    torch.save(self.model.state_dict(), "last.pt")  # !implicit-collective

        class Checkpoint:
            def __init__(self, trainer):
                self.trainer = trainer

            def save(self):
                if dist.get_rank() != 0:
                    return
                model = self.trainer.model
                torch.save(model.state_dict(), "best.pt")  # !implicit-collective
    """,
    "a class of the project that wraps a model, and a function that passes it on": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Transparent(FSDP):
            def __getattr__(self, name):
                try:
                    return super().__getattr__(name)
                except AttributeError:
                    return getattr(self.module, name)

        class Trainer:
            def __init__(self, model, optimizer):
                self.model = model
                self.optimizer = optimizer

            def validate(self, loader):
                if dist.get_rank() == 0:
                    for batch in loader:
                        self.model(batch)  # !one-rank-forward

        def prepare(model, optimizer, distributed):
            if distributed:
                model = Transparent(model)
            return model, optimizer

        def run(model, optimizer, loader):
            Trainer(model, optimizer).validate(loader)

        def main(net, optimizer, loader, distributed):
            model, optimizer = prepare(net, optimizer, distributed)
            run(model, optimizer, loader)
    """,
    "a rank that counts the seconds": """
        from datetime import datetime

        class Reporter:
            def __init__(self, seconds):
                self.seconds = seconds
                self.last = datetime.now()

            def report(self, x):
                elapsed = (datetime.now() - self.last).total_seconds()
                if elapsed < self.seconds:
                    return
                dist.all_reduce(x)  # !data-condition
    """,
}

EQUAL = {
    "a hook of a framework has the trainer of that framework": """
        from torch.distributed.fsdp import FullyShardedDataParallel
        from framework import Callback

        class Sample(Callback):
            def after_epoch(self):
                if dist.get_rank() == 0:
                    print(self.trainer.model(torch.ones(1)))

        class Trainer:
            def __init__(self, model):
                self.model = FullyShardedDataParallel(model)
    """,
    "a rank that every job has always fails: the launcher ends the job": """
        def main(x, rank, deadline):
            if rank > 0:
                raise RuntimeError("written for one process")
            if time.time() > deadline:
                dist.barrier()
            for _ in range(rank + 1):
                dist.all_reduce(x)
    """,
    "ranks that leave a loop with their first events": """
        def main(rank, flag):
            for shard in list(range(8))[rank :: dist.get_world_size()]:
                if flag:
                    dist.barrier()
                    break
    """,
    "a flag that the ranks agree on in the same method": """
        class Trainer:
            def __init__(self):
                self.rank = dist.get_rank()
                self.stop = False

            def check(self, loss):
                if self.rank == 0 and loss < 1:
                    self.stop = True
                flag = torch.tensor(int(self.stop))
                dist.broadcast(flag, 0)
                self.stop = bool(flag)

            def train(self, loader):
                for x in loader:
                    dist.all_reduce(x)
                    self.check(x.mean())
                    if self.stop:
                        break
    """,
    "a flag that the ranks agree on in the next method": """
        class Trainer:
            def __init__(self):
                self.rank = dist.get_rank()
                self.stop = False

            def train(self, loader):
                for x in loader:
                    dist.all_reduce(x)
                    if self.rank == 0:
                        self.stop = True
                    self.agree()
                    if self.stop:
                        break

            def agree(self):
                flag = torch.tensor(int(self.stop))
                dist.all_reduce(flag)
                self.stop = flag.item() > 0
    """,
    "a flag that is taken back": """
        class Trainer:
            def __init__(self):
                self.rank = dist.get_rank()
                self.stop = False

            def train(self, x):
                if self.rank == 0:
                    self.stop = True
                self.reset()
                if self.stop:
                    dist.barrier()

            def reset(self):
                self.stop = False
    """,
    "a counter that all ranks reset before one of them saves": """
        class State:
            def __init__(self, rank):
                self.rank = rank
                self.epochs_since_best = 0

        def update(state, metric):
            state.epochs_since_best = 0
            if state.rank != 0:
                return
            state.best = metric

        def goes_on(state):
            return state.epochs_since_best < 3

        def train(loader, model):
            state = State(dist.get_rank())
            while goes_on(state):
                state.epochs_since_best += 1
                for x in loader:
                    dist.all_reduce(x)
                update(state, x)
    """,
    "a number that the other ranks have received": """
        class Args:
            def __init__(self):
                self.epochs = 3

        def train(args):
            for _ in range(args.epochs):
                dist.barrier()

        def main():
            args = Args()
            received = torch.tensor([args.epochs])
            dist.broadcast(received, 0)
            if dist.get_rank() != 0:
                args.epochs = 2 * received[0].item()
            train(args)
    """,
    "a flag that decides what is printed": """
        class Trainer:
            def __init__(self):
                self.rank = dist.get_rank()
                self.ready = False

            def log(self):
                if self.rank != 0:
                    return
                self.ready = True

            def train(self, x):
                self.log()
                if self.ready:
                    print(x)
                dist.barrier()
    """,
    "saved on all ranks where it is sharded": f"""{WRAPPING}
        def main(net, args):
            model = wrap(net, args)
            if args.fsdp:
                state = model.state_dict()
            elif dist.get_rank() == 0:
                state = model.state_dict()
    """,
    "saved on all ranks where it is an object of FSDP": f"""{WRAPPING}
        def main(net, args):
            model = wrap(net, args)
            if isinstance(model, FSDP):
                state = model.state_dict()
            elif dist.get_rank() == 0:
                state = model.state_dict()
    """,
    "saved on one rank where it is an object of DDP": f"""{WRAPPING}
        def main(net, args):
            model = wrap(net, args)
            if isinstance(model, DDP):
                if dist.get_rank() == 0:
                    torch.save(model.state_dict(), "x.pt")
            else:
                state = model.state_dict()
    """,
    "what no wrapper makes communicate": f"""{WRAPPING}
        def main(net, args):
            model = wrap(net, args)
            if dist.get_rank() == 0:
                print(sum(p.numel() for p in model.parameters()))
                model.eval()
    """,
    "a model that is given plain to one and wrapped to the other": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Trainer:
            def __init__(self, model):
                self.model = model

            def look(self, x):
                if dist.get_rank() == 0:
                    self.model(x)

        def main(net):
            model = FSDP(net)
            return Trainer(model)

        def test(net):
            return Trainer(net)
    """,
    "a model that another method takes out of its wrapper": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Trainer:
            def __init__(self, config):
                self.model = FSDP(build(config))

            def finish(self):
                self.model = self.model.module

            def save(self):
                if dist.get_rank() == 0:
                    torch.save(self.model.state_dict(), "last.pt")
    """,
    "a class of the project that wraps a model and has a forward of its own": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Direct(FSDP):
            def forward(self, x):
                return self.module(x)

        def main(net, x):
            model = Direct(net)
            if dist.get_rank() == 0:
                model(x)
    """,
    "a function that is given a wrapped model and a plain one": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Trainer:
            def __init__(self, model):
                self.model = model

            def validate(self, x):
                if dist.get_rank() == 0:
                    self.model(x)

        def run(model, x):
            Trainer(model).validate(x)

        def main(net, x):
            model = FSDP(net)
            run(model, x)

        def export(net, x):
            run(net, x)
    """,
    "a time as a name": """
        from datetime import datetime

        def main(x, names):
            run = datetime.now().isoformat()
            if run in names:
                return
            dist.all_reduce(x)
    """,
    "a time in a name, and what is found under it": """
        import time
        from datetime import datetime

        def main(x, read, folder):
            stored = read(folder + "/run_at" + str(datetime.now()))
            for _ in range(stored["epoch"], 10):
                dist.all_reduce(x)
            other = read("run_%d" % time.time())
            for _ in range(other["epoch"], 10):
                dist.all_reduce(x)
    """,
}


@pytest.mark.parametrize("source", PARTING.values(), ids=PARTING)
def test_ranks_part(source: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, source)


@pytest.mark.parametrize("source", EQUAL.values(), ids=EQUAL)
def test_ranks_are_equal(source: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, source)
