"""Ranks that diverge in one of several functions or objects: out of a table, of a class that a test chooses, or of the
class that the project hands over."""

import pathlib

import pytest
from test_mismatches import check

TABLE = """
        def hits(x):
            t = x.sum()
            dist.all_reduce(t)
            return t

        def size(x):
            return len(x)
"""
METRICS = """
    import torchmetrics

    def build():
        return {"acc": torchmetrics.Accuracy(task="binary"), "f1": torchmetrics.F1Score(task="binary")}
"""
NORMED = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(x)
"""
PLAIN = NORMED.replace("BatchNorm1d", "Linear(4, 4); nn.LayerNorm")
WORKERS = """
        class Learner:
            def round(self, x):
                dist.reduce(x, 0)
                dist.broadcast(x, 0)

        class Actor:
            def round(self, x):
                dist.{first}(x, 0)
                dist.{second}(x, 0)
"""
METER = """
        class Meter:
            def __init__(self):
                self.sum = 0.0
                self.count = 0

            def update(self, value):
                self.sum += value
                self.count += 1

            def synchronise(self):
                t = torch.tensor([self.sum, self.count])
                dist.all_reduce(t)
                self.sum, self.count = t.tolist()

            @property
            def avg(self):
                return self.sum / self.count
"""

PARTING: dict[str, tuple[str, dict[str, str]]] = {
    "a function out of a table, by a name of the configuration": (
        f"""{TABLE}
        METRICS = {{"hits": hits, "size": size}}

        def report(x, names):
            if dist.get_rank() == 0:
                return {{name: METRICS[name](x) for name in names}}  # !rank-branch
        """,
        {},
    ),
    "the same by the method of a dictionary": (
        f"""{TABLE}
        METRICS = {{"hits": hits, "size": size}}

        def report(x, name):
            metric = METRICS.get(name)
            if dist.get_rank() == 0:
                return metric(x)  # !rank-branch
        """,
        {},
    ),
    "a loop over the functions of a table": (
        f"""{TABLE}
        METRICS = {{"hits": hits, "size": size}}

        def report(x):
            if dist.get_rank() == 0:
                for name, metric in METRICS.items():
                    print(name, metric(x))  # !rank-branch
        """,
        {},
    ),
    "a loop over a list of functions": (
        f"""{TABLE}
        def report(x):
            if dist.get_rank() == 0:
                for metric in [hits, size]:
                    metric(x)  # !rank-branch
        """,
        {},
    ),
    "a model that a function out of a table wraps": (
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.nn.parallel import DistributedDataParallel as DDP

        def sharded(model):
            return FSDP(model)

        def replicated(model):
            return DDP(model)

        WRAPPERS = {"fsdp": sharded, "ddp": replicated}

        def main(net, strategy, x):
            model = WRAPPERS[strategy](net)
            if dist.get_rank() == 0:
                model(x)  # !one-rank-forward
        """,
        {},
    ),
    "metrics of a dictionary that another file makes": (
        """
        from metrics import build

        class Trainer:
            def __init__(self):
                self.metrics = build()

            def report(self):
                if dist.get_rank() == 0:
                    print({name: metric.compute() for name, metric in self.metrics.items()})  # !implicit-collective
        """,
        {"metrics": METRICS},
    ),
    "an object whose class the rank decides": (
        f"""{WORKERS.format(first="broadcast", second="reduce")}
        def main(x):
            worker = Learner() if dist.get_rank() == 0 else Actor()
            worker.round(x)  # !order
        """,
        {},
    ),
    "the same by an if": (
        f"""{WORKERS.format(first="broadcast", second="reduce")}
        def main(x):
            if dist.get_rank() == 0:
                worker = Learner()
            else:
                worker = Actor()
            worker.round(x)  # !order
        """,
        {},
    ),
    "a model that is wrapped in one arm of an expression": (
        """
        from torch.nn.parallel import DistributedDataParallel as DDP
        from nets import Net

        def main(distributed, x):
            model = Net()
            model = DDP(model) if distributed else model
            if dist.get_rank() == 0:
                model(x)  # !one-rank-forward
        """,
        {"nets": NORMED},
    ),
    "a model with buffers that another file evaluates": (
        """
        from torch.nn.parallel import DistributedDataParallel as DDP
        from loops import evaluate
        from nets import Net

        def main(loader):
            model = DDP(Net())
            if dist.get_rank() == 0:
                evaluate(model, loader)  # !one-rank-forward
        """,
        {
            "nets": NORMED,
            "loops": """
    def evaluate(model, loader):
        return [model(x) for x in loader]
""",
        },
    ),
    "an object that the class is handed": (
        """
        class Scores:
            def finish(self, x):
                dist.all_reduce(x)

        class Runner:
            def __init__(self, scores):
                self.scores = scores

            def test(self, x):
                if dist.get_rank() == 0:
                    self.scores.finish(x)  # !rank-branch

        def main(x):
            Runner(Scores()).test(x)
        """,
        {},
    ),
    "an object that the class is handed as one of a base class": (
        """
        class Scores:
            def finish(self, x):
                raise NotImplementedError

        class Reduced(Scores):
            def finish(self, x):
                dist.all_reduce(x)

        class Runner:
            def __init__(self, scores: Scores):
                self.scores = scores

            def test(self, x):
                if dist.get_rank() == 0:
                    self.scores.finish(x)  # !rank-branch

        def main(x):
            Runner(Reduced()).test(x)
        """,
        {},
    ),
    "a model that a function has wrapped for the class": (
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(net):
            return FSDP(net)

        class Loop:
            def __init__(self, model):
                self.model = model

            def clip(self):
                if dist.get_rank() == 0:
                    self.model.clip_grad_norm_(1.0)  # !implicit-collective

        def main(net):
            model = build(net)
            Loop(model).clip()
        """,
        {},
    ),
    "what a property makes of each rank's own numbers": (
        f"""{METER}
        def main(model, loader, x):
            meter = Meter()
            for batch in loader:
                meter.update(model(batch).item())
            if meter.avg > 1:
                dist.all_reduce(x)  # !data-condition
        """,
        {},
    ),
    "a file that is made in a manager which waits behind its body": (
        """
        import contextlib

        @contextlib.contextmanager
        def main_process_first():
            if dist.get_rank() > 0:
                dist.barrier()
            yield
            if dist.get_rank() == 0:
                dist.barrier()

        def prepare(path, data):
            if not os.path.exists(path):
                with main_process_first():  # !data-condition
                    if not os.path.exists(path):
                        torch.save(data, path)
            return torch.load(path)
        """,
        {},
    ),
    "a file that a rank makes before the wait, by the same library as another file behind it": (
        """
        def prepare(folder, source, features, run):
            if not os.path.exists(features):
                if dist.get_rank() == 0:
                    os.makedirs(folder, exist_ok=True)
                    run(source, features)
                dist.barrier()  # !data-condition
        """,
        {},
    ),
    "a helper that makes the file on one rank alone and waits, called by those that miss it": (
        """
        import shutil
        import comm

        class Copy:
            def __init__(self, source):
                self.source = source

            def into(self, target):
                if dist.get_rank() == 0:
                    shutil.copytree(self.source, target)
                comm.barrier()

        def prepare(target, copy: Copy):
            if copy is not None and not os.path.isdir(os.path.join(target, "checkpoints")):
                copy.into(target)  # !data-condition
        """,
        {
            "comm": """
            def barrier():
                if dist.is_initialized():
                    dist.barrier()
            """
        },
    ),
}

EQUAL: dict[str, tuple[str, dict[str, str]]] = {
    "a function out of a table that all ranks call": (
        f"""{TABLE}
        METRICS = {{"hits": hits, "size": size}}

        def report(x, names):
            found = {{name: METRICS[name](x) for name in names}}
            if dist.get_rank() == 0:
                print(found)
        """,
        {},
    ),
    "a function out of a table none of which communicates": (
        f"""{TABLE}
        METRICS = {{"size": size, "length": len}}

        def report(x, name):
            hits(x)
            if dist.get_rank() == 0:
                return METRICS[name](x)
        """,
        {},
    ),
    "the entry that the key names": (
        f"""{TABLE}
        METRICS = {{"hits": hits, "size": size}}

        def report(x):
            if dist.get_rank() == 0:
                return METRICS["size"](x)
        """,
        {},
    ),
    "metrics that do not synchronise": (
        """
        from metrics import build

        def report():
            metrics = build()
            if dist.get_rank() == 0:
                print({name: metric.compute() for name, metric in metrics.items()})
        """,
        {"metrics": METRICS.replace('"binary"', '"binary", sync_on_compute=False')},
    ),
    "an object whose class the rank decides, which does the same": (
        f"""{WORKERS.format(first="reduce", second="broadcast")}
        def main(x):
            worker = Learner() if dist.get_rank() == 0 else Actor()
            worker.round(x)
        """,
        {},
    ),
    "an object whose class the configuration decides": (
        f"""{WORKERS.format(first="broadcast", second="reduce")}
        def main(x, learns):
            worker = Learner() if learns else Actor()
            worker.round(x)
        """,
        {},
    ),
    "a test of the class that the configuration has decided": (
        f"""{WORKERS.format(first="broadcast", second="reduce")}
        def main(x, learns):
            worker = Learner() if learns else Actor()
            if isinstance(worker, Learner):
                dist.all_reduce(x)
        """,
        {},
    ),
    "a writer on one rank and a stand-in on the others": (
        """
        class Writer:
            def log(self, x):
                print(x)

        class Silent:
            def log(self, x):
                pass

        def main(x):
            writer = Writer() if dist.get_rank() == 0 else Silent()
            dist.all_reduce(x)
            writer.log(x)
        """,
        {},
    ),
    "the module inside, in one arm of an expression": (
        """
        from torch.nn.parallel import DistributedDataParallel as DDP
        from nets import Net

        def main(distributed, x):
            model = Net()
            model = DDP(model) if distributed else model
            model = model.module if distributed else model
            if dist.get_rank() == 0:
                model(x)
        """,
        {"nets": NORMED},
    ),
    "a model without buffers that another file evaluates": (
        """
        from torch.nn.parallel import DistributedDataParallel as DDP
        from loops import evaluate
        from nets import Net

        def main(loader):
            model = DDP(Net())
            if dist.get_rank() == 0:
                evaluate(model, loader)
        """,
        {
            "nets": PLAIN,
            "loops": """
    def evaluate(model, loader):
        return [model(x) for x in loader]
""",
        },
    ),
    "an object of another class that the class is handed": (
        """
        class Scores:
            def finish(self, x):
                dist.all_reduce(x)

        class Local:
            def finish(self, x):
                return x

        class Runner:
            def __init__(self, scores):
                self.scores = scores

            def test(self, x):
                if dist.get_rank() == 0:
                    self.scores.finish(x)

        def main(x):
            Scores().finish(x)
            Runner(Local()).test(x)
        """,
        {},
    ),
    "numbers on which the ranks agree before a property is asked": (
        f"""{METER}
        def main(model, loader, x):
            meter = Meter()
            for batch in loader:
                meter.update(model(batch).item())
            meter.synchronise()
            if meter.avg > 1:
                dist.all_reduce(x)
        """,
        {},
    ),
    "a file that is made behind a manager which waits before its body": (
        """
        import contextlib

        @contextlib.contextmanager
        def main_process_first():
            if dist.get_rank() > 0:
                dist.barrier()
            yield
            if dist.get_rank() == 0:
                dist.barrier()

        def prepare(path, data):
            with main_process_first():
                if not os.path.exists(path):
                    torch.save(data, path)
            return torch.load(path)
        """,
        {},
    ),
    "a file that is made behind the wait, next to another one that a rank makes before": (
        """
        def prepare(folder, prompts, features, run):
            if not os.path.exists(features):
                if dist.get_rank() == 0:
                    os.makedirs(folder, exist_ok=True)
                    torch.save(folder, prompts)
                dist.barrier()
                run(prompts, out=features)
        """,
        {},
    ),
    "a helper that waits, and makes the file on all ranks, or another file, or none": (
        """
        import shutil

        def copy(source, target):
            shutil.copytree(source, target, dirs_exist_ok=True)
            dist.barrier()

        def tell(path):
            if dist.get_rank() == 0:
                print(path)
            dist.barrier()

        def prepare(source, target):
            if not os.path.isdir(target):
                copy(source, target)
            if not os.path.isdir(source):
                tell(target)
        """,
        {},
    ),
}


@pytest.mark.parametrize(("source", "others"), PARTING.values(), ids=PARTING)
def test_ranks_part(source: str, others: dict[str, str], tmp_path: pathlib.Path) -> None:
    check(tmp_path, source, **others)


@pytest.mark.parametrize(("source", "others"), EQUAL.values(), ids=EQUAL)
def test_ranks_are_equal(source: str, others: dict[str, str], tmp_path: pathlib.Path) -> None:
    check(tmp_path, source, **others)
