"""Small programs and where their ranks diverge.

A line that ends with `# !kind` must be the span of a mismatch of that kind, and no other line may be one.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from ddp_lint.divergence import Kind, Mismatch, analyse
from ddp_lint.divergence.analyse import result_of
from ddp_lint.findings import Confidence
from ddp_lint.program import Place, index
from ddp_lint.project import Project
from ddp_lint.rules.collectives.headlines import headline

HEAD = "import os, time\nimport torch\nimport torch.distributed as dist\n"
MARK = re.compile(r"# ([!?])([\w-]+)\s*$")


def mismatches(folder: pathlib.Path, source: str, **others: str) -> tuple[Mismatch, ...]:
    """The mismatches of a program; `others` are further modules of its project by name."""
    (folder / "pyproject.toml").touch()
    for name, text in others.items():
        (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(text))
    path = folder / "program.py"
    path.write_text(HEAD + textwrap.dedent(source))
    project = Project(folder, folder)
    facts = project.modules.facts_of(path)
    assert facts is not None
    found = analyse(facts, project)
    assert found == _of_what_can_communicate(path, folder)
    return found


def _of_what_can_communicate(path: pathlib.Path, folder: pathlib.Path) -> tuple[Mismatch, ...]:
    """The same, found in the functions that `program.reach` leaves: it may never leave out one that communicates."""
    project = Project(folder, folder)
    project.communication.reach = index(project.layout.files(), project.own.names, Place(str(folder), None))
    facts = project.modules.facts_of(path)
    assert facts is not None
    return analyse(facts, project)


def check(folder: pathlib.Path, source: str, **others: str) -> None:
    """Find what the marks say: `!kind` is reported by default, `?kind` with `--preview` alone."""
    found = mismatches(folder, source, **others)
    lines = (HEAD + textwrap.dedent(source)).splitlines()
    marks = {(m[1], n, m[2]) for n, line in enumerate(lines, 1) if (m := MARK.search(line))}
    assert {(p.span.line, p.kind.value) for p in found if p.confidence is not Confidence.LOW} == {
        (line, kind) for mark, line, kind in marks if mark == "!"
    }
    assert {(line, kind) for mark, line, kind in marks if mark == "?"} <= {(p.span.line, p.kind.value) for p in found}


PARTING = {
    "two loops that a loop over steps starts in turn": """
        def train(dataset, x, steps):
            step = 0
            done = False
            own = dataset[dist.get_rank() :: dist.get_world_size()]
            while True:
                for batch in own:
                    dist.all_reduce(x)  # !loop-count
                for _ in range(4):
                    dist.all_reduce(x)
                    step += 1
                    if step >= steps:
                        done = True
                        break
                if done:
                    break
    """,
    "the same with a collective behind the loop within": """
        def train(dataset, x, steps):
            step = 0
            done = False
            own = dataset[dist.get_rank() :: dist.get_world_size()]
            while True:
                batches = iter(own)
                while True:
                    try:
                        batch = next(batches)
                    except StopIteration:
                        break
                    if step >= steps:
                        done = True
                        break
                    dist.all_reduce(x)  # !loop-count
                    step += 1
                dist.barrier()
                if done:
                    break
    """,
    "a loop over what a rank has, once an epoch": """
        def train(dataset, x, epochs):
            own = dataset[dist.get_rank() :: dist.get_world_size()]
            epoch = 0
            while epoch < epochs:
                batches = iter(own)
                while True:
                    try:
                        batch = next(batches)
                    except StopIteration:
                        break
                    dist.all_reduce(x)  # !loop-count
                epoch += 1
    """,
    "the second round of a loop over two numbers": """
        def validate(x):
            for times in [0, 1]:
                if times > 0 and dist.get_rank() == 0:
                    continue
                dist.barrier()  # !rank-branch
    """,
    "the rank and a number of members": """
        def run(members, x):
            if dist.get_rank() >= members:
                return
            dist.all_reduce(x)  # !rank-branch
    """,
    "a partner, in the world": """
        def swap(x, size):
            rank = dist.get_rank()
            if rank == (rank % size) * size + rank // size:
                return
            dist.all_reduce(x)  # !rank-branch
    """,
    "what rank 0 sets, once all have agreed": """
        def train(x, flag):
            dist.all_reduce(flag)
            stop = flag.item() > 0
            if dist.get_rank() == 0:
                stop = True
            if stop:
                return
            dist.all_reduce(x)  # !rank-branch
    """,
    "a loop over what has another length, by the rank": """
        from shown import bars

        def generate(seeds, number):
            own = seeds[dist.get_rank() :: dist.get_world_size()]
            for _, batch in bars(range(len(own)), own, disable=(dist.get_rank() != 0)):
                dist.barrier()  # !loop-count
    """,
    "a share that has more added, as much as on all ranks": """
        def decode(pieces, more):
            size = dist.get_world_size()
            most = (len(pieces) + size - 1) // size
            rank = dist.get_rank()
            mine = pieces[most * rank : most * (rank + 1)]
            if len(mine) < most:
                mine.extend(more[: len(mine)])
            for piece in mine:
                dist.all_reduce(piece)  # !loop-count
    """,
    "a break out of a loop over a generator, on one rank": """
        def pieces(data):
            yield from data

        def evaluate(data, x):
            for epoch in range(3):
                for batch in pieces(data):
                    if dist.get_rank() == 0:
                        break
                    dist.all_reduce(x)  # !rank-branch
                dist.barrier()
    """,
    "a round for each rank, in which all wait": """
        def in_order(x):
            for turn in range(dist.get_world_size()):
                if turn == dist.get_rank():
                    dist.all_reduce(x)  # !rank-branch
                dist.barrier()
    """,
    "a job that is joined again": """
        def main(rank, x):
            dist.destroy_process_group()
            dist.init_process_group("nccl")
            if rank == 0:
                dist.all_reduce(x)  # !rank-branch

        def part(rank, x):
            if rank == 1:
                dist.destroy_process_group()
            if rank == 0:
                dist.all_reduce(x)  # !rank-branch
    """,
    "a method that nothing else has": """
        class Average:
            def save_whole_average(self, path):
                dist.barrier()

        def save(averages, path):
            if dist.get_rank() == 0:
                for average in averages:
                    average.save_whole_average(path)  # !rank-branch
    """,
    "a rank that has not got what the others have": """
        def main(x):
            out = None
            if dist.get_rank() == 0:
                out = make()
            if out is not None:
                dist.all_reduce(x)  # !rank-branch
    """,
    "a trainer of a framework that the project uses": """
        from lightning.pytorch import Trainer

        def save(trainer):
            if dist.get_rank() == 0:
                trainer.save_checkpoint("last.pt")  # !implicit-collective
    """,
    "a value that is missing at times": """
        import time

        def main(x, text):
            condition = None if time.time() % 2 < 1 else text
            if condition is not None:
                dist.all_reduce(x)  # !data-condition
    """,
    "a loop with its events under the rank test, and another rank test behind it": """
        def main(x, rank, loader):
            for epoch in range(3):
                for step, batch in enumerate(loader):
                    if step % 10 == 0 and rank == 0:
                        dist.all_reduce(x)  # !rank-branch
                if rank == 0:
                    dist.broadcast(x, 0)  # !rank-branch
    """,
    "a helper that wraps a model in one of several ways": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.nn.parallel import DistributedDataParallel as DDP

        def wrap(config, model):
            if config.strategy == "ddp":
                return DDP(model)
            if config.strategy == "fsdp":
                return FSDP(model)
            return model

        def evaluate(config, net, loader):
            model = wrap(config, net)
            if dist.get_rank() == 0:
                for batch in loader:
                    model(batch)  # !one-rank-forward
            dist.barrier()

        def answer(config, net, prompts):
            model = wrap(config, net)
            for prompt in prompts[dist.get_rank()::dist.get_world_size()]:
                model(prompt)  # !one-rank-forward
    """,
    "a list that stays empty on the other ranks": """
        def share(load):
            rows = []
            if dist.get_rank() == 0:
                rows = load()
            for row in rows:
                dist.all_reduce(row)  # !loop-count
    """,
    "a dictionary with an entry on rank 0 alone": """
        def validate(measure):
            result = {}
            if dist.get_rank() == 0:
                result["accuracy"] = measure()
            if result.get("accuracy", 0) > 0.5:
                dist.barrier()  # !rank-branch

        def name(measure):
            result = {}
            if dist.get_rank() == 0:
                result = {"accuracy": measure()}
            if "accuracy" in result:
                dist.barrier()  # !rank-branch
    """,
    "a metric of one's own, whose compute the base class makes communicate": """
        import torchmetrics

        class Accuracy(torchmetrics.Metric):
            def update(self, x):
                self.hits = x.sum()

            def compute(self):
                return self.hits / 2

        class Probe:
            def __init__(self):
                self.accuracy = Accuracy()

            def show(self):
                if dist.get_rank() == 0:
                    print(self.accuracy.compute())  # !implicit-collective
    """,
    "a flag that an object is made with, and that its constructor hands on": """
        class Loader:
            def __init__(self, config, divided=False):
                self.divided = divided

            def load(self):
                if self.divided:
                    dist.all_reduce(torch.zeros(1))

        class Own(Loader):
            def __init__(self, config, divided=False):
                super().__init__(config, divided=divided)

        def prepare(config):
            if dist.get_rank() == 0:
                Own(config, True).load()  # !rank-branch
            dist.barrier()

        def set_later(config):
            own = Own(config)
            own.divided = config.divided
            if dist.get_rank() == 0:
                own.load()  # !rank-branch
            dist.barrier()
        """,
    "the number of one sample's own, and a file that is made without a lock": """
        def evaluate(loader):
            for batch in loader:
                if batch["answer"][0].item() > 3:
                    dist.all_reduce(batch["answer"])  # !data-condition

        def prepare(path, build):
            if not path.is_file():
                if dist.get_rank() == 0:
                    build(path)
                dist.barrier()  # !data-condition
                path.touch()
        """,
    "a worker that keeps its failure for itself, and a handler that takes the exit": """
        import numpy as np

        def worker(args, number, queue):
            try:
                rank = dist.get_rank()
                if rank != args.ranks[number]:
                    raise AssertionError("another rank than asked for")
                dist.barrier()  # !rank-branch
            except AssertionError:
                print("failed")

        def train(batches):
            dist.init_process_group("nccl")
            try:
                for batch in batches:
                    loss = batch.mean().item()
                    dist.barrier()  # !loop-count
                    if not np.isfinite(loss):
                        exit(1)
            except (KeyboardInterrupt, SystemExit):
                pass
        """,
    "blocks of a size that is rounded up, a range that deals out, and what a subset of the data holds": """
        import math
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.utils.data import DataLoader, Subset

        def blocks(paths, x):
            rank, size = dist.get_rank(), dist.get_world_size()
            each = math.ceil(len(paths) / size)
            for path in paths[rank * each : (rank + 1) * each]:
                dist.all_reduce(x)  # !loop-count

        def rest_to_the_last(paths, x):
            rank, size, total = dist.get_rank(), dist.get_world_size(), len(paths)
            each = total // size
            end = rank * each + each if rank < size - 1 else len(paths)
            for path in paths[rank * each : end]:
                dist.all_reduce(x)  # !loop-count

        def validate(build, data):
            model = FullyShardedDataParallel(build())
            own = list(range(dist.get_rank(), len(data), dist.get_world_size()))
            for x in DataLoader(Subset(data, own)):
                model(x)  # !loop-count
    """,
    "selected by what all labels are not, held by a dictionary": """
        def gather(outputs, labels, buffers):
            valid = {"logits": outputs.logits[labels != -100]}
            for name, value in valid.items():
                dist.all_gather(buffers, value)  # !argument
    """,
    "what rank 0 has found, and sent to nobody": """
        RANK = int(os.getenv("RANK", -1))

        class Trainer:
            def train(self, loader: torch.utils.data.DataLoader, x):
                for batch in loader:
                    self.stop = batch.sum().item() > 3
                    if RANK != 0:
                        self.stop = self.stop and batch.min().item() > 3
                    if self.stop:
                        break
                    dist.all_reduce(x)  # !loop-count
    """,
    "a callee that asks for another setting": """
        def validate(x, opts, model_opts):
            if model_opts.half:
                dist.all_reduce(x)

        def main(x, opts):
            if dist.get_rank() == 0 or opts.distributed_eval:
                validate(x, opts, model_opts=opts)  # !rank-branch
    """,
    "a loader over the data in a random order": """
        from torch.utils.data import DataLoader, RandomSampler

        def evaluate(data, x):
            sampler = RandomSampler(data)
            total = 0.0
            for batch in DataLoader(data, sampler=sampler, batch_size=4):
                total += batch.sum().item()
            if total > 3:
                dist.all_reduce(x)  # !data-condition
    """,
    "whether each of them is great": """
        def f(loader: torch.utils.data.DataLoader, model, x):
            for batch in loader:
                if all(value > 3 for value in model(batch)):
                    dist.all_reduce(x)  # !data-condition
    """,
    "a mask that selects none of a rank's own data": """
        def loss(feats, labels):
            mask = labels >= 0
            if mask.sum() == 0:
                return feats.sum() * 0
            total = feats.sum()
            dist.all_reduce(total)  # !data-condition
            return total

        def mean(x, valid_mask):
            if not valid_mask.any():
                return x.new_zeros(())
            dist.all_reduce(x)  # !data-condition
    """,
    "gradients by the name of a list, of which a rank may have none": """
        def norm(grads_for_norm, ep_group):
            norms = [grad.norm() for grad in grads_for_norm]
            if not norms:
                return 0.0
            total = torch.stack(norms).sum()
            dist.all_reduce(total, group=ep_group)  # !data-condition
    """,
    "keys of two dictionaries together, and a set of words": """
        KEYS = {"loss", "accuracy"}

        def sync(first, second):
            for key in first.keys() | second.keys():
                dist.all_reduce(first[key])  # !order
            for key in KEYS:
                dist.all_reduce(first[key])  # !order
    """,
    "a flag together with the rank, and one of its name that is set anew": """
        class Trainer:
            def __init__(self, shared=True):
                self.shared = shared
                self.evaluates = dist.get_rank() == 0 or shared

            def share(self):
                self.shared = True

            def evaluate(self, x):
                if self.evaluates:
                    if self.shared:
                        dist.all_reduce(x)  # !rank-branch
    """,
    "settings of which a constructor refuses others together, or which are set anew": """
        class Trainer:
            def __init__(self, settings):
                self.sharding = settings.sharding
                self.change_bias = settings.change_bias
                if self.sharding.enabled and self.compiles:
                    raise ValueError("not with shards")
                if self.sharding.enabled and self.averaged:
                    raise ValueError("no average of shards")

            def average(self):
                self.averaged = True

            def finish(self):
                if self.change_bias and dist.get_rank() == 0:
                    if self.sharding.enabled:
                        dist.barrier()  # !rank-branch

            def finish_averaged(self):
                if self.averaged and dist.get_rank() == 0:
                    if self.sharding.enabled:
                        dist.barrier()  # !rank-branch
    """,
    "a flag in a dictionary of an object": """
        class Trainer:
            def __init__(self):
                self.flags = {"main": dist.get_rank() == 0}

            def save(self):
                if self.flags["main"]:
                    dist.barrier()  # !rank-branch
    """,
    "the last rank among others": """
        def save(x):
            rank, size = dist.get_rank(), dist.get_world_size()
            if rank in {-1, size - 1}:
                dist.barrier()  # !rank-branch
    """,
    "a model that the caller has wrapped, which the callee runs on one rank": """
        from torch.nn.parallel import DistributedDataParallel
        # a model with BatchNorm

        def evaluate(model, loader, rank):
            if rank != 0:
                return None
            for x in loader:
                model(x)  # !one-rank-forward

        def main(model, loader, distributed):
            if distributed:
                model = DistributedDataParallel(model)
            evaluate(model, loader, dist.get_rank())
    """,
    "as many pieces as the batch has tokens": """
        def f(loader: torch.utils.data.DataLoader, x):
            for batch in loader:
                pieces = batch["mask"].sum().item()
                for piece in range(pieces):
                    dist.all_reduce(x)  # !loop-count
    """,
    "a loop that some rounds leave": """
        def main(x, flag):
            for n in range(dist.get_rank() + 1):
                dist.all_reduce(x)  # !loop-count
                if flag:
                    break
    """,
    "a loop in which only one rank returns": """
        def main(x):
            rank = dist.get_rank()
            k = 0
            while k < 3:
                k += 1
                if rank == 1:
                    return
                if rank == 2:
                    dist.barrier()
            dist.all_reduce(x)  # !rank-branch
    """,
    "a clock that is asked twice": """
        def main(x, deadline):
            if time.time() > deadline:
                pass
            elif time.time() > deadline:
                dist.all_reduce(x)  # !data-condition
    """,
    "an exception that a return in the finally block discards": """
        def main(x, bad):
            try:
                if dist.get_rank() == 1:
                    raise ValueError(bad)
                dist.broadcast(x, src=0)  # !rank-branch
            finally:
                return
    """,
    "another event under the same choice, made twice": """
        def main(x, cfg):
            if dist.get_rank() == 1 and cfg.save:
                dist.barrier()
                dist.all_reduce(x)  # !rank-branch
            else:
                dist.barrier()
            if cfg.save:
                dist.broadcast(x, src=0)
    """,
    "an exception that is raised again, which a handler for interrupts and others is for": """
        def save(model, path):
            if dist.get_rank() == 0:
                try:
                    write(model, path)
                except Exception:
                    remove(path)
                    raise
            dist.barrier()

        def main(model, path):
            try:
                save(model, path)  # !rank-branch
            except (KeyboardInterrupt, RuntimeError):
                pass
    """,
    "a job of one process where nothing launched several": """
        def setup(launched):
            if not launched:
                os.environ["WORLD_SIZE"] = "1"
            dist.init_process_group("gloo")

        def main(x, launched):
            setup(launched)
            if dist.get_rank() == 0:
                dist.all_reduce(x)  # !rank-branch

        def early(x, launched):
            if launched:
                dist.init_process_group("gloo")
                return
            dist.init_process_group("gloo", rank=0, world_size=1)

        def evaluate(x, launched):
            early(x, launched)
            if dist.get_rank() == 0:
                dist.all_reduce(x)  # !rank-branch
    """,
    "a closure that all ranks' optimizers call": """
        def fit(optimizer: torch.optim.Optimizer, x):
            def closure():
                if dist.get_rank() == 0:
                    dist.all_reduce(x)  # !rank-branch
                return x

            optimizer.step(closure)
    """,
    "what a filter leaves of a batch, and a piece that ends where this rank's data do": """
        def train(model, train_loader):
            model = torch.nn.parallel.DistributedDataParallel(model)
            for batch in train_loader:
                kept = batch[batch > 0]
                if kept.shape[0] == 0:
                    continue
                model(kept).sum().backward()  # !optimizer-step

        def shorten(model, train_loader):
            model = torch.nn.parallel.DistributedDataParallel(model)
            for batch in train_loader:
                kept = batch[: batch.sum().item()]
                if kept.shape[0] == 0:
                    continue
                model(kept).sum().backward()  # !optimizer-step
    """,
    "what a generator yields beside the number of the round": """
        def numbered(it):
            for i, batch in enumerate(it):
                yield i, batch

        def main(train_loader, x):
            for i, batch in numbered(train_loader):
                if batch.sum() > 0:
                    dist.all_reduce(x)  # !data-condition
    """,
    "an entry that some ranks alone have": """
        def train(model, train_loader):
            for batch in train_loader:
                losses = {}
                losses["class"] = model(batch)
                if batch["mask"].sum() > 0:
                    losses["mask"] = model(batch)
                for loss in losses.values():
                    dist.all_reduce(loss)  # !loop-count
    """,
    "a mask that was compared further up": """
        def gather(boxes, scores, out):
            keep = scores > 0.5
            dist.all_gather(out, boxes[keep])  # !argument
    """,
    "a call on one rank in a loop that is left further down": """
        from accelerate import Accelerator
        # accelerate launch --use_fsdp program.py

        def main(loader, most):
            accelerator = Accelerator()
            for step, batch in enumerate(loader):
                if step % 100 == 0:
                    if accelerator.is_main_process:
                        accelerator.save_state("checkpoint")  # !implicit-collective
                if step > most:
                    break
    """,
    "an iterator whose end each rank meets by itself": """
        from torch.nn.parallel import DistributedDataParallel as DDP

        def train(model, dataset):
            model = DDP(model)
            it = iter(dataset.stream(rank=dist.get_rank()))
            while True:
                try:
                    batch = next(it)
                except StopIteration:
                    break
                model(batch).sum().backward()  # !loop-count
    """,
    "a part of the model that some samples lack": """
        from torch.distributed.fsdp import fully_shard

        class Model(torch.nn.Module):
            def __init__(self, vision, language):
                self.vision = vision
                fully_shard(self.vision)
                self.language = language

            def forward(self, batch):
                if "pixel_values" in batch:
                    return self.language(self.vision(batch["pixel_values"]))  # !one-rank-forward
                return self.language(batch["input_ids"])
    """,
    "tokens until this rank's own sequences end": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def complete(model, tokens, end):
            model = FSDP(model)
            finished = torch.zeros(4, dtype=torch.bool)
            while not finished.all():
                step = model(tokens).argmax(-1)  # !one-rank-forward
                finished |= step == end

        def sample(model, tokens):
            model = FSDP(model)
            if dist.get_rank() == 0:
                model.generate(tokens)  # !one-rank-forward
    """,
    "a loader over this rank's share": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.utils.data import DataLoader

        def validate(model, data):
            model = FSDP(model)
            loader = DataLoader(data[dist.get_rank()::dist.get_world_size()], batch_size=4)
            for batch in loader:
                model(batch)  # !loop-count
    """,
    "two loaders, one of which ends with this rank's data": """
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader, IterableDataset

        class Lines(IterableDataset):
            def __iter__(self):
                yield from open(f"part{dist.get_rank()}")

        def train(model, other):
            model = DDP(model)
            lines = DataLoader(Lines())
            for text, image in zip(lines, other):
                model(text, image).sum().backward()  # !loop-count
    """,
    "what a list or a dictionary holds has another shape on each rank": """
        def collect(model, loader, out):
            texts = []
            for batch in loader:
                texts.append(model.generate(batch["ids"]))
            dist.all_gather(out, torch.cat(texts))  # !argument

        def select(features, labels, out):
            keep = labels > 0
            chosen = {"features": features[labels > 0]}
            dist.all_gather(out, chosen["features"])  # !argument
    """,
    "a function that rank 0 of each node runs, and one that others call as well": """
        import os

        def serve(req, x):
            while True:
                if req.is_completed():
                    break
                dist.broadcast(x, 0)  # !loop-count

        def poll(req, x):
            while True:
                if req.is_completed():
                    break
                dist.broadcast(x, 0)  # !loop-count

        def work(x):
            while True:
                dist.broadcast(x, 0)

        def main(req, x):
            if int(os.environ["LOCAL_RANK"]) == 0:
                serve(req, x)
            else:
                work(x)

        def both(req, x):
            if dist.get_rank() == 0:
                poll(req, x)
            else:
                work(x)

        def all_poll(req, x):
            poll(req, x)
    """,
    "what the first ranks of nodes decide alone, in their branch and behind it": """
        import os

        def within(loader, x, limit):
            bad = 0
            for batch in loader:
                if int(os.environ["LOCAL_RANK"]) == 0:
                    bad += 1
                if int(os.environ["LOCAL_RANK"]) == 0:
                    if bad > limit:
                        break
                    dist.all_reduce(x)  # !rank-branch

        def behind(loader, x, limit):
            bad = 0
            for batch in loader:
                if int(os.environ["LOCAL_RANK"]) == 0:
                    bad += 1
                if bad > limit:
                    break
                dist.all_reduce(x)  # !loop-count
    """,
    "no gradients on this rank": """
        def norm(parameters, ep_group):
            grads = [p.grad for p in parameters if p.grad is not None]
            if len(grads) == 0:
                return 0.0
            total = torch.stack([g.norm() for g in grads]).norm()
            dist.all_reduce(total, group=ep_group)  # !data-condition
            return total

        def scaled(parameters):
            grads = [p.grad for p in parameters if p.grad is not None]
            if grads:
                dist.all_reduce(torch.stack([g.norm() for g in grads]).norm())  # ?data-condition
    """,
    "a model of a library that has buffers": """
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torchvision.models import resnet50

        def main(loader, held_out):
            model = DDP(resnet50())
            for x in loader:
                model(x).sum().backward()
            if dist.get_rank() == 0:
                for x in held_out:
                    model(x)  # !one-rank-forward
    """,
    "either of two decides, as far as the rank's own number goes": """
        def main(cfg, x):
            rank = dist.get_rank()
            if rank == 0:
                if cfg.steps > 1 or rank:
                    dist.all_reduce(x)  # !rank-branch
    """,
    "a rank that passes by does so in each round": """
        def main(count):
            for _ in range(count):
                if dist.get_rank() == 0:
                    dist.barrier()  # !rank-branch
                    break
    """,
    "what a function gives that may give nothing": """
        from typing import Any, Dict, Optional

        def gathered(model) -> Optional[Dict[str, Any]]:
            return model.gathered()

        def convert(state=None):
            if state is None:
                dist.barrier()
            torch.save(state, "out")

        def finish(model):
            state = gathered(model)
            if dist.get_rank() == 0:
                convert(state)  # !rank-branch
    """,
    "a batch that a framework hands to a method": """
        from lightning.pytorch import LightningModule
        from transformers import Trainer

        class Module(LightningModule):
            def training_step(self, data, index):
                loss = self.net(data)
                if loss.item() > 3:
                    dist.all_reduce(loss)  # !data-condition
                return loss

        class Tuner(Trainer):
            def training_step(self, model, inputs, count=None):
                labels = inputs["labels"].ne(-100).sum()
                if labels == 0:
                    return torch.zeros(1)
                dist.all_reduce(labels)  # !data-condition
                return super().training_step(model, inputs, count)
    """,
    "a pipeline of torchrec": """
        from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist

        def f(net, optimizer, device, batches):
            model = DistributedModelParallel(net, device=device)
            pipeline = TrainPipelineSparseDist(model, optimizer, device)
            if dist.get_rank() == 0:
                pipeline.progress(batches)  # !implicit-collective
    """,
    "a metric of a module below a package of metrics": """
        from torchmetrics.image.fid import FrechetInceptionDistance

        def f(images):
            fid = FrechetInceptionDistance(feature=64, dist_sync_fn=None)
            fid.update(images, real=True)
            if dist.get_rank() == 0:
                print(fid.compute())  # !implicit-collective
    """,
    "what a differentiable function of one's own does": """
        class Gather(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, group):
                ctx.group = group
                parts = [torch.zeros_like(x) for _ in range(dist.get_world_size(group))]
                dist.all_gather(parts, x, group=group)
                return torch.cat(parts)

            @staticmethod
            def backward(ctx, grad):
                return grad, None

        def gathered(x, group=None):
            return Gather.apply(x, group)

        def f(x):
            if dist.get_rank() == 0:
                gathered(x)  # !rank-branch
    """,
    "a differentiable function under a name of the module's, whose context is set up apart": """
        from torch.autograd import Function

        class Sum(Function):
            @staticmethod
            def forward(x, everywhere):
                if everywhere:
                    dist.all_reduce(x)
                return x

            @staticmethod
            def setup_context(ctx, inputs, output):
                pass

        summed = Sum.apply

        def f(x):
            if dist.get_rank() == 0:
                summed(x, True)  # !rank-branch
    """,
    "a metric that has been moved is a metric": """
        import torchmetrics

        def f(loader):
            accuracy = torchmetrics.Accuracy(task="binary").cuda().to("cuda:0")
            for batch in loader:
                accuracy.update(batch)
            if dist.get_rank() == 0:
                print(accuracy.compute())  # !implicit-collective
    """,
    "batches of a stream that are asked for until it ends": """
        class Lines(torch.utils.data.IterableDataset):
            def __iter__(self):
                yield from open(f"lines{dist.get_rank()}")

        def train(loss):
            batches = iter(torch.utils.data.DataLoader(Lines()))
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                dist.all_reduce(loss(batch))  # !loop-count
    """,
    "batches of a stream that are asked for with a default": """
        class Lines(torch.utils.data.IterableDataset):
            def __iter__(self):
                yield from open(f"lines{dist.get_rank()}")

        def train(loss):
            batches = iter(torch.utils.data.DataLoader(Lines()))
            while True:
                batch = next(batches, None)
                if batch is None:
                    break
                dist.all_reduce(loss(batch))  # !loop-count
    """,
    "a flag of the object itself that this rank's own loss sets": """
        from torch.utils.data import DataLoader

        class Trainer:
            def __init__(self):
                self.diverged = False

            def look(self, loss):
                if loss > 100:
                    self.diverged = True

            def fit(self, model, loader: DataLoader, x):
                for batch in loader:
                    self.look(model(batch).item())
                    if self.diverged:
                        dist.all_reduce(x)  # !data-condition
    """,
    "an object that this rank's own loss tells to stop": """
        from torch.utils.data import DataLoader

        class Stopper:
            def __init__(self, patience):
                self.patience, self.best, self.count, self.stop = patience, 1e9, 0, False

            def __call__(self, loss):
                if loss < self.best:
                    self.best, self.count = loss, 0
                else:
                    self.count += 1
                    if self.count > self.patience:
                        self.stop = True

        def train(model, loader: DataLoader, x):
            stopper = Stopper(3)
            for batch in loader:
                stopper(model(batch).item())
                if stopper.stop:
                    break
                dist.all_reduce(x)  # !loop-count
    """,
    "a loop that this rank's own validation loss ends": """
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader

        def validate(model, loader):
            total = 0.0
            for batch in loader:
                total += model(batch).mean().item()
            return total / len(loader)

        def train(net, loader: DataLoader, held: DataLoader, optimizer):
            model = DistributedDataParallel(net)
            best, bad = 1e9, 0
            for epoch in range(100):
                for batch in loader:
                    model(batch).sum().backward()  # !optimizer-step
                    optimizer.step()
                loss = validate(model, held)
                if loss < best:
                    best, bad = loss, 0
                else:
                    bad += 1
                if bad > 3:
                    break
    """,
    "what a wrapped model makes of this rank's batch": """
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader

        def f(net, loader: DataLoader, x):
            model = DistributedDataParallel(net)
            for batch in loader:
                if model(batch).mean().item() > 1:
                    dist.all_reduce(x)  # !data-condition
    """,
    "training on this rank's share of a list": """
        from torch.nn.parallel import DistributedDataParallel

        def train(net, data, optimizer):
            model = DistributedDataParallel(net)
            mine = data[dist.get_rank() :: dist.get_world_size()]
            for start in range(0, len(mine), 8):
                model(mine[start : start + 8]).sum().backward()  # !optimizer-step
                optimizer.step()
    """,
    "this rank's share of the files that all find": """
        class Converter:
            def files(self):
                return sorted(os.listdir(self.folder))[dist.get_rank() :: dist.get_world_size()]

            def run(self, x):
                for name in self.files():
                    dist.all_reduce(x)  # !loop-count
    """,
    "a flag that a signal handler of the module sets": """
        import signal

        STOP = False

        def stop(number, frame):
            global STOP
            STOP = True

        signal.signal(signal.SIGUSR1, stop)

        def fit(loader, x):
            for batch in loader:
                if STOP:
                    break
                dist.all_reduce(x)  # !loop-count
    """,
    "a flag that a signal handler of the object sets": """
        import signal

        class Trainer:
            def __init__(self):
                self._caught = False
                signal.signal(signal.SIGTERM, self._catch)

            def _catch(self, number, frame):
                self._caught = True

            @property
            def caught(self):
                return self._caught

            def fit(self, loader, x):
                for batch in loader:
                    if self.caught:
                        break
                    dist.all_reduce(x)  # !loop-count
    """,
    "a flag that is set before the function registers the handler, its own and one of the object": """
        import signal

        class Trainer:
            def _catch(self, number, frame):
                self.caught = True

            def fit(self, loader, x):
                self.caught = False
                signal.signal(signal.SIGTERM, self._catch)
                for batch in loader:
                    if self.caught:
                        break
                    dist.all_reduce(x)  # !loop-count

        def fit(loader, x):
            caught = False

            def catch(number, frame):
                nonlocal caught
                caught = True

            signal.signal(signal.SIGTERM, catch)
            for batch in loader:
                if caught:
                    break
                dist.all_reduce(x)  # !loop-count
    """,
    "a meter that was told of no samples on one rank": """
        class Meter:
            def __init__(self):
                self.count = 0
                self.sum = 0.0

            def update(self, value, n=1):
                self.sum += value * n
                self.count += n

            def synchronize(self):
                if self.count == 0:
                    return
                both = torch.tensor([self.sum, self.count])
                dist.all_reduce(both)  # !data-condition
                self.sum, self.count = both.tolist()

            def mean(self):
                if not self.count:
                    return 0.0
                total = torch.tensor(self.sum)
                dist.all_reduce(total)  # !data-condition
                return total
    """,
    "gradients that Horovod's optimizer reduces while they come": """
        import horovod.torch as hvd

        def fit(model, optimizer, loader):
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
            for batch in loader:
                loss = model(batch)
                if torch.isnan(loss):
                    continue
                loss.backward()  # !optimizer-step
                optimizer.step()
    """,
    "a process that ends without an error: no launcher ends the others": """
        import sys

        def f(x):
            if dist.get_rank() != 0:
                sys.exit(0)
            dist.all_reduce(x)  # !rank-branch
    """,
    "a process that ends in the arm of the first rank": """
        def f(args):
            if dist.get_rank() != 0:
                dist.barrier()  # !rank-branch
            else:
                if args.done:
                    exit(0)
                dist.barrier()
    """,
    "a helper that ends the process": """
        def finish():
            print("nothing to do")
            exit()

        def f(x, done):
            if dist.get_rank() == 0 and done:
                finish()
            dist.all_reduce(x)  # !rank-branch
    """,
    "a file that all make who miss it": """
        def f(path, make):
            if not os.path.exists(path):
                make(path)
                dist.barrier()
            return open(path)
    """,
    "whether a batch has a field, and how large it is": """
        def train(model, loader):
            for batch in loader:
                if batch.get("extra"):
                    dist.all_reduce(model.count)
                returned = batch.get("returned", None)
                if returned:
                    dist.all_reduce(model.count)
                output = model(batch)
                if output.auxiliary:
                    dist.all_reduce(model.count)
                if output.auxiliary.item() > 3:
                    dist.all_reduce(model.count)  # !data-condition
                if batch.get("extra").any():
                    dist.all_reduce(model.count)  # !data-condition
    """,
    "a barrier for those that found the file missing": """
        def f(path, make):
            if not os.path.exists(path):
                if dist.get_rank() == 0:
                    make(path)
                dist.barrier()  # !data-condition
            return open(path)
    """,
    "the first node waits for all": """
        def f():
            if int(os.environ["GROUP_RANK"]) == 0:
                dist.barrier()  # !rank-branch
    """,
    "a barrier for those that found the file missing, one of which makes it from the settings": """
        def f(args, make):
            if not os.path.exists(args.file):
                if dist.get_rank() == 0:
                    make(args)
                dist.barrier()  # !data-condition
            return open(args.file)
    """,
    "a barrier for those that found the file missing, in an object that makes it": """
        class Data:
            def __init__(self, path):
                self.path = path
                if not os.path.exists(self.path):
                    if dist.get_rank() == 0:
                        self.download()
                    dist.barrier()  # !data-condition
    """,
    "a barrier for those that found the file missing, one of which saves it": """
        def f(path, initial, state):
            if os.path.exists(path):
                state = torch.load(path)
            else:
                if dist.get_rank() == 0:
                    torch.save(state, initial)
                    torch.save(state, path)
                dist.barrier()  # !data-condition
            return state
    """,
    "a model that is sharded on one rank of a job that shards models": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def save(model, path):
            if isinstance(model, FSDP):
                dist.barrier()
            torch.save(model.state_dict(), path)

        def train(net, path):
            model = FSDP(net)
            if dist.get_rank() == 0:
                save(model, path)  # !rank-branch
    """,
    "a barrier for those that could not open the file": """
        def f(path, make):
            try:
                return open(path)
            except FileNotFoundError:
                if dist.get_rank() == 0:
                    make(path)
                dist.barrier()  # !data-condition
            return open(path)
    """,
    "a batch beside its number": """
        def f(train_loader):
            numbered = enumerate(train_loader)
            for step, batch in numbered:
                if batch["loss"] > 3:
                    dist.barrier()  # !data-condition
            steps = iter(enumerate(iter(train_loader)))
            step, batch = next(steps)
            if batch["loss"] > 3:
                dist.barrier()  # !data-condition
    """,
    "a reason that the clock gives, on some ranks": """
        def f(x, deadline):
            reason = None
            if time.time() > deadline:
                reason = "out of time"
            if reason is not None:
                dist.all_reduce(x)  # !data-condition
    """,
    "as many rounds as the batch is long": """
        def f(batch, x):
            for number in range(batch["input"].shape[1]):
                dist.all_reduce(x)  # ?loop-count

        def g(batch, x):
            rows, length = batch["input"].shape
            for number in range(length):
                dist.all_reduce(x)  # ?loop-count
    """,
    "a plan that may be missing": """
        class Plan:
            pass

        def shard(module, plan=None):
            if plan is None:
                values = [None]
                dist.broadcast_object_list(values, src=0)
                plan = values[0]
            return plan

        def f(module, planned):
            plan = None
            if planned:
                plan = Plan()
            if dist.get_rank() == 0:
                shard(module, plan)  # !rank-branch
    """,
    "an empty batch, and what is left of one": """
        def f(loader, x):
            for batch in loader:
                if len(batch) == 0:
                    continue
                dist.barrier()  # !data-condition

        def g(loader, x):
            for batch in loader:
                kept = [item for item in batch if item.usable]
                for number in range(len(kept)):
                    dist.all_reduce(x)  # !loop-count
    """,
    "a share of files, as many as there happen to be": """
        def f(files, x):
            count = dist.get_world_size() * 2
            mine = sorted(files)[dist.get_rank() :: dist.get_world_size()]
            for number in range(len(mine)):
                dist.all_reduce(x)  # !loop-count
    """,
    "the main rank of a group": """
        class Engine:
            def save(self, source_rank):
                if dist.get_rank(group=self.zp_group) == source_rank:
                    dist.barrier(group=self.zp_group)  # !rank-branch
    """,
    "an early stop by the rank's own validation loss": """
        def fit(model, loader, val_loader):
            model = torch.nn.parallel.DistributedDataParallel(model)
            best, bad = 1e9, 0
            while True:
                for x in loader:
                    model(x).mean().backward()  # !optimizer-step
                losses = []
                for x in val_loader:
                    losses.append(model(x).mean().item())
                if sum(losses) / len(losses) < best:
                    best, bad = sum(losses) / len(losses), 0
                else:
                    bad += 1
                if bad > 3:
                    break
    """,
    "an early stop by an object that counts": """
        class Stopper:
            def __init__(self):
                self.counter = 0

            def enough(self, loss):
                if loss > 3:
                    self.counter += 1
                return self.counter > 3

        def fit(model, loader, stopper: Stopper):
            model = torch.nn.parallel.DistributedDataParallel(model)
            for x in loader:
                loss = model(x).mean()
                loss.backward()  # !optimizer-step
                if stopper.enough(loss.item()):
                    break
    """,
    "an early stop by a flag of an object": """
        class Stopper:
            def __init__(self):
                self.stop = False

            def __call__(self, loss):
                if loss > 3:
                    self.stop = True

        def fit(model, loader):
            model, stopper = torch.nn.parallel.DistributedDataParallel(model), Stopper()
            for x in loader:
                loss = model(x).mean()
                loss.backward()  # !optimizer-step
                stopper(loss.item())
                if stopper.stop:
                    break
    """,
    "a get_dist_info of another project that returns rank and world size": """
        from elsewhere import get_dist_info

        def main():
            rank, world_size = get_dist_info()
            if rank == 0:
                dist.barrier()  # !rank-branch
    """,
    "a launcher's variable as a number": """
        def f(x):
            rank = int(os.environ.get("RANK") or 0)
            if not rank:
                dist.barrier()  # !rank-branch
    """,
    "a dictionary's clock, beside its loss": """
        def f(loss, best):
            stats = {"loss": loss, "now": time.time()}
            if stats["now"] > best:
                dist.barrier()  # !data-condition
    """,
    "one arm asks, the other does not": """
        def f(batch, args, x):
            if dist.get_rank() == 0:
                dist.broadcast(x, src=0)  # !rank-branch
            elif args.receives:
                dist.broadcast(x, src=0)
    """,
    "a loop that one rank passes by, behind a choice that both made": """
        from accelerate import Accelerator
        # accelerate launch --use_deepspeed program.py

        def f(accelerator: Accelerator, loader, args):
            step = 0
            if args.resume:
                accelerator.load_state(args.out)
            for batch in loader:
                step += 1
                if accelerator.is_main_process:
                    if step % args.every == 0:
                        accelerator.save_state(args.out)  # !implicit-collective
            accelerator.wait_for_everyone()
    """,
    "a large function that communicates in one mode only": """
        def score(x, sharded):
            if sharded:
                while True:
                    if dist.get_rank() == 0:
                        dist.broadcast(x, src=0)  # !rank-branch
                        continue
                    dist.broadcast(x, src=0)
                    dist.barrier()
            return x

        def evaluate(data, x, sharded):
            if "first" in data:
                score(x, sharded)
            if "second" in data:
                score(x, sharded)

        def f(data, x, args):
            if not args.sharded and dist.get_rank() != 0:
                return
            evaluate(data, x, args.sharded)
    """,
    "batches of an iterator by name": """
        def train(model, batch_iterator):
            model = torch.nn.parallel.DistributedDataParallel(model)
            for batch in batch_iterator:
                model(batch).sum().backward()  # !loop-count
    """,
    "batches of a stream that ends": """
        class Lines(torch.utils.data.IterableDataset):
            def __iter__(self):
                yield from open(f"lines{dist.get_rank()}")

        def evaluate(loss):
            for batch in torch.utils.data.DataLoader(Lines()):
                dist.all_reduce(loss(batch))  # !loop-count
    """,
    "rank branch": """
        def f(x):
            if dist.get_rank() == 0:
                dist.all_reduce(x)  # !rank-branch
    """,
    "early return": """
        def f():
            if dist.get_rank() != 0:
                return
            dist.barrier()  # !rank-branch
    """,
    "the condition has a uniform part too": """
        def f(flag):
            if flag and int(os.environ["RANK"]) == 0:
                dist.barrier()  # !rank-branch
    """,
    "derived flag": """
        def f(save):
            is_saver = False
            if dist.get_rank() == 0 and save:
                is_saver = True
            if is_saver:
                dist.barrier()  # !rank-branch
    """,
    "a variable that only rank 0 sets": """
        def f(reason):
            cancel = None
            if dist.get_rank() == 0:
                if reason():
                    cancel = "time"
            if cancel is not None:
                dist.barrier()  # !rank-branch
    """,
    "short circuit": """
        def sync():
            dist.barrier()
            return True

        def f():
            return dist.get_rank() == 0 and sync()  # !rank-branch
    """,
    "conditional expression": """
        def f(x):
            return dist.all_gather_object([None], x) if dist.get_rank() == 0 else None  # !rank-branch
    """,
    "match": """
        def f():
            match dist.get_rank():
                case 0:
                    dist.barrier()  # !rank-branch
                case _:
                    pass
    """,
    "helper": """
        def helper(x):
            dist.all_reduce(x)

        def f(x):
            if dist.get_rank() == 0:
                helper(x)  # !rank-branch
    """,
    "in a function that is decorated": """
        def logged(function):
            def call(*args):
                print(function)
                return function(*args)
            return call

        @logged
        def f(x):
            if dist.get_rank() == 0:
                dist.all_reduce(x)  # !rank-branch
    """,
    "a module variable that a function sets": """
        master = False

        def init():
            global master
            master = dist.get_rank() == 0

        def f():
            if master:
                dist.barrier()  # !rank-branch
    """,
    "members of an enumeration are different": """
        import enum

        class Stage(enum.Enum):
            TRAIN = enum.auto()
            VALID = enum.auto()

        def f(stage):
            if stage == Stage.TRAIN:
                print(stage)
            elif stage == Stage.VALID:
                if dist.get_rank() == 0:
                    dist.barrier()  # !rank-branch
    """,
    "behind an abstract method": """
        class Trainer:
            def step(self, batch):
                raise NotImplementedError

            def fit(self, batches, start):
                for batch in batches:
                    self.step(batch)
                    if time.time() - start > 60:
                        dist.barrier()  # !data-condition
    """,
    "the rank is an argument": """
        def helper(flag, x):
            if flag:
                dist.all_reduce(x)

        def f(x):
            helper(dist.get_rank() == 0, x)  # !rank-branch
    """,
    "clock": """
        def f(start):
            if time.time() - start > 60:
                dist.barrier()  # !data-condition
    """,
    "file": """
        def f(path):
            if not os.path.exists(path):
                return
            dist.barrier()  # !data-condition
    """,
    "a rank's own batch": """
        def f(loader, model):
            for batch in loader:
                loss = model(batch)
                if loss.item() > 3:
                    continue
                dist.all_reduce(loss)  # !data-condition
    """,
    "swallowed exception": """
        def f(path, x):
            try:
                x = torch.load(path)
                dist.all_reduce(x)  # !data-condition
            except Exception:
                pass
    """,
    "suppressed exception": """
        import contextlib

        def f(path, x):
            with contextlib.suppress(OSError):
                x = torch.load(path)
                dist.all_reduce(x)  # !data-condition
    """,
    "loop over as many rounds as the rank says": """
        def f():
            for _ in range(dist.get_rank()):
                dist.barrier()  # !loop-count
    """,
    "each rank leaves the loop when it is done": """
        def f(loader, x):
            it = iter(loader)
            while True:
                try:
                    batch = next(it)
                except StopIteration:
                    break
                dist.all_reduce(x)  # !loop-count
    """,
    "order of a set": """
        def f(names, values):
            for name in set(names):
                dist.all_reduce(values[name])  # !order
    """,
    "swapped": """
        def f(a, b):
            if dist.get_rank() == 0:
                dist.broadcast(a, 0)  # !order
                dist.all_reduce(b)
            else:
                dist.all_reduce(b)
                dist.broadcast(a, 0)
    """,
    "root is the rank": """
        def f(x):
            dist.broadcast(x, src=dist.get_rank())  # !argument
    """,
    "roots differ between arms": """
        def f(x):
            if dist.get_rank() == 0:
                dist.broadcast(x, src=0)  # !argument
            else:
                dist.broadcast(x, src=1)
    """,
    "the accelerator of a trainer of transformers": """
        from transformers import Trainer

        class Own(Trainer):
            def compute_loss(self, model, inputs):
                loss = model(**inputs).loss
                if self.is_world_process_zero():
                    print(self.accelerator.gather(loss))  # !rank-branch
                return loss
    """,
    "another group in each arm": """
        def listed(rank):
            if rank < 2:
                return dist.new_group([0, 1])  # !new-group
            return dist.new_group([2, 3])

        def halves(rank, world_size):
            half = world_size // 2
            if rank < half:
                group = dist.new_group(list(range(half)))  # !new-group
            else:
                group = dist.new_group(list(range(half, world_size)))
            return group
    """,
    "new_group by members only": """
        def f(ranks):
            if dist.get_rank() in ranks:
                dist.new_group(ranks)  # !new-group
    """,
    "gating decorator": """
        from lightning.pytorch.utilities import rank_zero_only

        @rank_zero_only
        def save():
            dist.barrier()  # !rank-branch

        def f():
            save()
    """,
    "gating decorator of the project": """
        import functools

        def main_only(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                if dist.get_rank() == 0:
                    return function(*args, **kwargs)
            return wrapper

        @main_only
        def save():
            dist.barrier()  # !rank-branch

        def f():
            save()
    """,
    "generator that only rank 0 consumes": """
        def shards(tensors):
            for t in tensors:
                dist.all_reduce(t)
                yield t

        def f(tensors):
            it = shards(tensors)
            if dist.get_rank() == 0:
                for t in it:  # !rank-branch
                    print(t)
    """,
    "partial": """
        import functools

        def f(x):
            reduce = functools.partial(dist.all_reduce, x)
            if dist.get_rank() == 0:
                reduce()  # !rank-branch
    """,
    "forward of a module": """
        class Model(torch.nn.Module):
            def forward(self, x):
                dist.all_reduce(x)
                return x

        def f(x):
            model = Model()
            if dist.get_rank() == 0:
                model(x)  # !rank-branch
    """,
    "attribute set in the constructor": """
        class Trainer:
            def __init__(self):
                self.is_saver = dist.get_rank() == 0

            def save(self):
                if self.is_saver:
                    self._gather()  # !rank-branch

            def _gather(self):
                dist.barrier()
    """,
    "hook of a base class that only one rank runs": """
        class Callback:
            def run(self, event):
                if dist.get_rank() != 0:
                    return
                self.step()

            def step(self):
                pass

        class Speed(Callback):
            def step(self):
                dist.barrier()  # !rank-branch
    """,
    "super": """
        class Base:
            def save(self):
                dist.barrier()

        class Child(Base):
            def save(self):
                if dist.get_rank() == 0:
                    super().save()  # !rank-branch
    """,
    "two ranks of one group": """
        def f(x, group):
            if dist.get_rank(group) == 0:
                dist.all_reduce(x, group=group)  # !rank-branch
    """,
    "implicit collective": """
        from accelerate import Accelerator

        def f(path):
            accelerator = Accelerator()
            if accelerator.is_main_process:
                accelerator.wait_for_everyone()  # !rank-branch
    """,
    "a condition of the callee is that of the caller, whoever else calls it": """
        def sync(x, on):
            if on:
                dist.all_reduce(x)

        def other(x, cfg):
            sync(x, len(cfg.a) + 1 > 2)

        def one(x, cfg):
            on = len(cfg.b) + 2 > 5
            if dist.get_rank() == 0 and on:
                sync(x, on)  # !rank-branch
    """,
    "another question is asked by the caller than by the callee": """
        def level(cfg):
            return cfg.levels[0] + 1

        def reduced(x, cfg):
            if level(cfg) > 3:
                dist.all_reduce(x)

        def main(x, cfg):
            if level(cfg) > 3 and dist.get_rank() == 0:
                reduced(x, cfg)  # !rank-branch
    """,
    "there are several ranks, however that is put": """
        def world():
            if not dist.is_initialized():
                return 1
            return dist.get_world_size()

        def one(x):
            several = 2 <= world()
            if dist.get_rank() == 0 and several:
                dist.all_reduce(x)  # !rank-branch
    """,
    "None on some ranks": """
        def one(x, path):
            data = None
            if dist.get_rank() == 0:
                data = torch.load(path)
            if data is not None:
                dist.all_reduce(x)  # !rank-branch

        def two(loader, x):
            for batch in loader:
                best = None
                if batch["loss"].item() > 3:
                    best = batch["loss"]
                if best is not None:
                    dist.all_reduce(x)  # !data-condition
    """,
    "an object that works on several devices": """
        class Trainer:
            def __init__(self, devices, num_nodes=1):
                self.devices = devices

            def save_checkpoint(self, path):
                dist.barrier()

        def main(path):
            trainer = Trainer(devices=2)
            if dist.get_rank() == 0:
                return
            trainer.save_checkpoint(path)  # !rank-branch
    """,
    "one of the first ranks of the nodes stays out": """
        def first(x, rank):
            leaders = dist.new_group(range(0, dist.get_world_size(), 8))
            if rank == 0:
                dist.all_reduce(x, group=leaders)  # !rank-branch

        def one_of_many(x, rank):
            world = dist.get_world_size()
            workers = dist.new_group(list(range(world - 1)))
            if rank == 0:
                dist.all_reduce(x, group=workers)  # !rank-branch

        def later(x, rank):
            even = dist.new_group([2 * n for n in range(dist.get_world_size() // 2)])
            if rank % 2 == 0 and rank > 0:
                dist.all_reduce(x, group=even)  # !rank-branch

        def of_node(x, rank):
            for start in range(0, dist.get_world_size(), 8):
                group = dist.new_group(list(range(start, start + 8)))
                if start <= rank < start + 8:
                    mine = group
            if rank % 8 == 0:
                dist.all_reduce(x, group=mine)  # !rank-branch

        def computed(x, ranks):
            group = dist.new_group(ranks)
            if dist.get_rank() == 0:
                dist.all_reduce(x, group=group)  # !rank-branch
    """,
    "a number that a comprehension makes of this rank's batches": """
        def summed(model, loader):
            if sum(model(x).mean().item() for x in loader) > 1:
                dist.barrier()  # !data-condition

        def best(model, loader):
            if max([model(x).mean().item() for x in loader]) > 1:
                dist.barrier()  # !data-condition
    """,
    "one of the members stays out": """
        def one(x):
            group = dist.new_group([0, 1])
            if dist.get_rank() == 0:
                dist.all_reduce(x, group=group)  # !rank-branch

        def four(x, groups, src):
            inner, outer = groups
            if dist.get_rank() == src:
                dist.all_reduce(x, group=outer)  # !rank-branch
    """,
    "an object that was told to": """
        class Logger:
            def __init__(self, sync):
                self.sync = sync

            def log(self, x):
                if self.sync:
                    dist.all_reduce(x)

        def main(path, x):
            logger = Logger(True)
            if dist.get_rank() == 0:
                logger.log(x)  # !rank-branch
    """,
    "a caller gives each rank a batch of its own": """
        def validate(model, batch):
            loss = model(batch).mean()
            if loss.item() > 5:
                dist.all_reduce(loss)  # !data-condition

        def main(model):
            validate(model, torch.randn(2, 4) * (100 if dist.get_rank() == 1 else 1))
    """,
    "a caller makes the ranks diverge": """
        def log(x, reduce):
            if dist.get_rank() == 0 and reduce:
                dist.all_reduce(x)  # !rank-branch

        def one(x):
            log(x, False)

        def two(x, cfg):
            log(x, cfg.reduce)

        def shard(x, rank):
            if rank == 0:
                dist.all_reduce(x)  # !rank-branch

        def its_own(x, cfg):
            shard(x, cfg.place)

        def before():
            if dist.get_rank() != 0:
                dist.barrier()  # !rank-branch

        def both(path):
            before()
            open(path)
    """,
    "a helper ends the process of one rank": """
        import sys

        def leave(rank):
            if rank == 0:
                sys.exit()

        def f(x):
            leave(dist.get_rank())
            dist.all_reduce(x)  # !rank-branch
    """,
    "a job of two processes": """
        def smoke(x, rank):
            dist.init_process_group("gloo", rank=rank, world_size=2)
            if dist.get_rank() == 0:
                dist.all_reduce(x)  # !rank-branch
    """,
    "a barrier in rounds that some ranks have": """
        def f(names, rank, x):
            mine = names[dist.get_rank() :: dist.get_world_size()]
            for i, name in enumerate(mine):
                print(name)
                if (i + 1) % 20 == 0:
                    dist.barrier()  # !loop-count
    """,
    "parameters are gathered by one rank": """
        import deepspeed

        def build(weight):
            if dist.get_rank() == 0:
                with deepspeed.zero.GatheredParameters(weight, modifier_rank=0):  # !implicit-collective
                    weight.zero_()
    """,
    "a handler that is called from elsewhere, too": """
        import signal

        def save():
            if dist.get_rank() == 0:
                dist.barrier()  # !rank-branch

        def main(x):
            signal.signal(signal.SIGUSR1, save)
            try:
                x.train()
            except Exception:
                save()
                raise
    """,
    "a time in a dictionary is a time": """
        def f(x, start):
            info = {"score": 1.0, "elapse": time.time() - start}
            if info["elapse"] > 3:
                dist.all_reduce(x)  # !data-condition
    """,
    "an enumerated batch by keyword": """
        def f(loader: torch.utils.data.DataLoader, x):
            for step, batch in enumerate(iterable=loader):
                if batch.sum().item() > 1:
                    dist.all_reduce(x)  # !data-condition
    """,
    "a group that all ranks have made": """
        class Learner:
            def __init__(self):
                self._update_group = dist.new_group([0, 1])
                self.reward = None
                if dist.get_rank() == 0:
                    self.reward = object()

            def sync(self, x):
                if self.reward:
                    dist.broadcast(x, 0, group=self._update_group)  # !rank-branch
    """,
    "a step that the other arm only logs": """
        def main(model, loader, log):
            dist.init_process_group("nccl")
            optimizer = torch.optim.SGD(torch.nn.parallel.DistributedDataParallel(model).parameters(), 0.1)
            for batch in loader:
                if dist.get_rank() == 0:
                    log.step()
                else:
                    optimizer.step()  # !optimizer-step
    """,
    "a manager that reduces on its way out": """
        class Timer:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                dist.all_reduce(self.spent)

        def f(work):
            if dist.get_rank() == 0:
                with Timer():  # !rank-branch
                    work()
    """,
    "what all ranks read, where only one of them counts": """
        def prompt(path, x):
            count = 0
            if dist.get_rank() == 0:
                count = len(open(path).readlines())
            at = 0
            while True:
                if dist.get_rank() == 0:
                    at += 1
                dist.broadcast(x, 0)  # !loop-count
                if at == count:
                    return

        def prompt_with_an_else(path, x):
            if dist.get_rank() == 0:
                count = len(open(path).readlines())
            else:
                count = len(path)
            at = 0
            while True:
                if dist.get_rank() == 0:
                    at += 1
                dist.broadcast(x, 0)  # !loop-count
                if at == count:
                    return

        def read_on_the_rank_that_has_it(path, x):
            if dist.get_rank() == 0:
                lines = open(path).readlines()
            if dist.get_rank() == 0:
                print(lines)
                dist.all_reduce(x)  # !rank-branch

        def caught(path, x):
            if dist.get_rank() == 0:
                lines = open(path).readlines()
            try:
                print(lines)
            except NameError:
                return
            dist.all_reduce(x)  # !rank-branch
    """,
}

EQUAL = {
    "a loop over what a rank has, which starts again until all steps are made": """
        def train(dataset, x, steps):
            step = 0
            done = False
            own = dataset[dist.get_rank() :: dist.get_world_size()]
            while True:
                batches = iter(own)
                while True:
                    try:
                        batch = next(batches)
                    except StopIteration:
                        break
                    if step >= steps:
                        done = True
                        break
                    dist.all_reduce(x)
                    step += 1
                if done:
                    break
    """,
    "a loop over one number, which its test excludes": """
        def validate(x, keys):
            for times in [0]:
                if times > 0 and dist.get_rank() == 0:
                    continue
                dist.barrier()
            keys.setdefault(*())
    """,
    "an accelerator of no framework": """
        class Own:
            def log(self, loss):
                if dist.get_rank() == 0:
                    print(self.accelerator.gather(loss))
    """,
    "all groups in each arm": """
        def pairs(rank):
            if rank < 2:
                own, _ = dist.new_group([0, 1]), dist.new_group([2, 3])
            else:
                _, own = dist.new_group([0, 1]), dist.new_group([2, 3])
            return own

        def one(rank, world_size):
            if rank == 0:
                return dist.new_group(list(range(world_size)), backend="gloo")
            return dist.new_group(list(range(0, world_size)), backend="gloo")
    """,
    "a part of an entry that a rank's own share changes, in a dictionary with a key for all": """
        class Model:
            def validate(self, data, rank, size, padded):
                self.results = {}
                for name in data.names:
                    self.results[name] = torch.zeros(9)
                for i in range(rank, padded, size):
                    if i < len(data):
                        for frame in range(9):
                            for score, metric in enumerate(self.metrics.values()):
                                self.results[data[i]["name"]][frame] += metric(data[i])
                for total in self.results.values():
                    dist.reduce(total, 0)
    """,
    "the rank and the number of ranks": """
        def run(rank, size, x):
            if rank >= size:
                return
            dist.all_reduce(x)

        def join(x):
            if not dist.get_rank() < dist.get_world_size():
                return
            if int(os.environ["LOCAL_RANK"]) == dist.get_world_size():
                return
            dist.all_reduce(x)
    """,
    "the group of a rank and its partner": """
        def swap(x, out, row, col, size, pair):
            rank = dist.get_rank()
            partner = (rank % size) * size + rank // size
            if rank == partner:
                return x
            dist.broadcast(x, rank, group=pair)
            return out
    """,
    "what rank 0 sends, which is a constant there": """
        def train(x, rank):
            stop = False
            for epoch in range(9):
                sent = [stop if rank == 0 else None]
                dist.broadcast_object_list(sent, 0)
                if rank != 0:
                    stop = sent[0]
                if stop:
                    break
    """,
    "a break out of a loop over a generator": """
        def pieces(data, size):
            batch = []
            for x in data:
                batch.append(x)
                if len(batch) == size:
                    yield batch
            if len(batch) > 0:
                yield batch

        def evaluate(data, rank, size, total):
            for epoch in range(3):
                for batch in pieces(data[rank::size], 8):
                    if len(total) > 100:
                        break
                    total.append(batch)
                dist.all_reduce(total)
    """,
    "a function that rank 0 runs through another": """
        class Trainer:
            def __init__(self, rank, x):
                self.rank, self.x = rank, x

            def train(self):
                for epoch in range(self.epochs):
                    dist.all_reduce(self.x)
                dist.barrier()

        def main(args, x, agent):
            trainer = Trainer(dist.get_rank(), x)
            if args.sweep and trainer.rank == 0:
                agent(args.sweep, function=trainer.train, count=1)
            else:
                trainer.train()
    """,
    "a round for each rank, of which each skips its own": """
        def check(rank, peer):
            dist.barrier()
            return True

        def peers(rank, world_size):
            for peer in range(world_size):
                if peer == rank:
                    continue
                if not check(rank, peer):
                    return False
            return True

        def write(x, group, save):
            for turn in range(dist.get_world_size(group)):
                if turn == dist.get_rank(group):
                    save(x)
                    dist.barrier(group)
    """,
    "a rank that has left the job": """
        import sys

        def leave(rank):
            if rank != 0:
                sys.exit()
            if dist.is_initialized():
                dist.destroy_process_group()

        def main(args, rank, x):
            if args.train:
                dist.all_reduce(x)
                leave(rank)
            dist.all_reduce(x)
    """,
    "whether a checkpoint was there to make a model of": """
        def main(args, path, make, x):
            model = None
            if os.path.exists(path):
                model = make(torch.load(path))
            if model is None:
                model = make(args, model)
                dist.barrier()
                if dist.get_rank() == 0:
                    make(args)
            return model
    """,
    "a method that modules have": """
        class Average:
            def save_pretrained(self, path):
                dist.barrier()

        def save(models, path):
            if dist.get_rank() == 0:
                for model in models:
                    model.save_pretrained(path)
    """,
    "which object went through the data": """
        class Evaluator:
            def evaluate(self, loader, trace):
                model = trace(self.model, next(iter(loader)))
                if model is self.model:
                    dist.barrier()
    """,
    "how a loop over shares of one length is shown": """
        from shown import bars

        def generate(seeds, number):
            pieces = torch.as_tensor(seeds).tensor_split(number * dist.get_world_size())
            own = pieces[dist.get_rank() :: dist.get_world_size()]
            for _, batch in bars(range(len(own)), own, disable=(dist.get_rank() != 0)):
                dist.barrier()
    """,
    "a share that is filled up with the pieces of others": """
        def decode(pieces):
            size = dist.get_world_size()
            most = (len(pieces) + size - 1) // size
            rank = dist.get_rank()
            mine = pieces[most * rank : most * (rank + 1)]
            if len(mine) < most:
                mine.extend(pieces[: most - len(mine)])
            for piece in mine:
                dist.all_reduce(piece)
    """,
    "a count that has the name of an iterator": """
        def train(model, steps, batches):
            model = torch.nn.parallel.DistributedDataParallel(model)
            range_iterator = range(steps) if dist.get_rank() else tqdm.trange(steps)
            for batch_idx in range_iterator:
                model(next(batches)).backward()
    """,
    "an error for what the caller has given the rank that needs it": """
        def gather(out, x):
            if dist.get_rank() == 0:
                if out is None:
                    raise ValueError("nothing to write to")
                for sender in range(1, dist.get_world_size()):
                    dist.recv(out[sender], sender)
            else:
                dist.send(x, 0)
            dist.barrier()

        def tried(x):
            try:
                out = None
                if dist.get_rank() == 0:
                    out = torch.empty(4)
                gather(out, x)
                return True
            except ValueError:
                return False

        def on_all(x):
            try:
                gather(torch.empty(4), x)
            except ValueError:
                print("failed")
    """,
    "an address with a random number in it": """
        import random

        def seed(number):
            random.seed(number + dist.get_rank())

        def infer(cfg):
            port = random.randint(10000, 20000)
            cfg.address = f"tcp://localhost:{port}"

        def main(cfg, x):
            if cfg.address is None:
                infer(cfg)
            if cfg.address is not None:
                dist.all_reduce(x)
    """,
    "a trainer of a framework that the project does not use": """
        from fairseq.trainer import Trainer

        def save(trainer):
            if dist.get_rank() == 0:
                trainer.save_checkpoint("last.pt")
    """,
    "what one rank prints of what was gathered": """
        class Metrics:
            def collected(self):
                gathered = [None] * dist.get_world_size()
                dist.all_gather_object(gathered, self.values)
                return {i: each for i, each in enumerate(gathered)}

            def gather_all(self):
                return self.collected()

            def show(self, gathered=None):
                if dist.get_rank() != 0:
                    return
                print(self.gather_all() if gathered is None else gathered)

        def train(metrics: Metrics):
            found = metrics.gather_all()
            metrics.show(found)
    """,
    "a process that a wrong setting ends before the first rank lets the others go on": """
        def encoder(args):
            if args.kind != "bert":
                print("no such kind")
                exit(0)
            return args.kind

        def load(args):
            if args.local_rank not in [-1, 0]:
                dist.barrier()
            model = encoder(args)
            if args.local_rank == 0:
                dist.barrier()
            return model
    """,
    "lists that are filled on all ranks, or received from one": """
        def fill(load, count):
            names = []
            if dist.get_rank() == 0:
                names = load()
            else:
                names = [None] * count
            dist.broadcast_object_list(names, 0)
            for name in names:
                dist.barrier()

        def send(load):
            rows = []
            if dist.get_rank() == 0:
                rows = load()
            held = [rows]
            dist.broadcast_object_list(held, 0)
            for row in held[0]:
                dist.all_reduce(row)
    """,
    "a dictionary with the same entries on all ranks": """
        def validate(measure):
            result = {"accuracy": 0.0}
            if dist.get_rank() == 0:
                result["folder"] = measure()
            if result.get("accuracy", 0) > 0.5:
                dist.barrier()
            if "accuracy" in result:
                dist.barrier()
    """,
    "a flag that an object is made without, and that its constructor hands on": """
        class Loader:
            def __init__(self, config, divided=False):
                self.divided = divided
                self.load()

            def load(self):
                if self.divided:
                    dist.all_reduce(torch.zeros(1))

        class Own(Loader):
            def __init__(self, config, divided=False):
                super(Own, self).__init__(config, divided)

        def prepare(config):
            if dist.get_rank() == 0:
                Own(config)
            dist.barrier()
        """,
    "a flag that is a function's name, which always holds": """
        def evaluate(model):
            return model()

        def load(args, build):
            if args.local_rank == 0 and not evaluate:
                dist.barrier()
        """,
    "a setting that a function within a method asks for, and the method that it calls": """
        import dataclasses

        @dataclasses.dataclass
        class Config:
            divided: bool = False

        class Trainer:
            def __init__(self, config: Config, plan):
                self.config, self.plan = config, plan

            def fit(self, model):
                def hook(x):
                    if self.config.divided:
                        if x not in self.plan[dist.get_rank()]:
                            return
                    self.maybe_all_reduce(x)

            def maybe_all_reduce(self, x):
                if self.config.divided:
                    return
                dist.all_reduce(x)
        """,
    "whether a split has labels, as the first of a batch says": """
        def evaluate(loader):
            for batch in loader:
                if batch["answer"][0].item() != -1:
                    dist.all_reduce(batch["answer"])
        """,
    "a file that is made behind a lock: each job makes it for itself": """
        from filelock import FileLock

        def prepare(path, build):
            with FileLock("done.lock"):
                if not path.is_file():
                    build(path)
                    dist.barrier()
                    path.touch()
        """,
    "an exit that fails, which a handler for something else does not catch": """
        import numpy as np

        def train(batches):
            dist.init_process_group("nccl")
            try:
                for batch in batches:
                    loss = batch.mean().item()
                    dist.barrier()
                    if not np.isfinite(loss):
                        exit(1)
            except KeyboardInterrupt:
                pass
        """,
    "a worker whose failure its parent is told of, and ends the others": """
        import traceback

        def worker(args, number, queue):
            try:
                rank = dist.get_rank()
                if rank != args.ranks[number]:
                    raise AssertionError("another rank than asked for")
                dist.barrier()
            except KeyboardInterrupt:
                pass
            except Exception:
                queue.put((args.ranks[number], traceback.format_exc()))
        """,
    "blocks of one size, and of a list that was filled up": """
        import math

        def rounded_down(paths, x):
            rank, size = dist.get_rank(), dist.get_world_size()
            each = len(paths) // size
            for path in paths[rank * each : (rank + 1) * each]:
                dist.all_reduce(x)

        def a_part_for_all(paths, x, end):
            if end is None:
                end = len(paths)
            for path in paths[:end]:
                dist.all_reduce(x)

        def filled_up(paths, x):
            rank, size = dist.get_rank(), dist.get_world_size()
            each = math.ceil(len(paths) / size)
            paths += paths[: each * size - len(paths)]
            for path in paths[rank * each : (rank + 1) * each]:
                dist.all_reduce(x)
    """,
    "what rank 0 has found, and sent to the others": """
        RANK = int(os.getenv("RANK", -1))

        class Trainer:
            def train(self, loader: torch.utils.data.DataLoader, x):
                for batch in loader:
                    if RANK in (-1, 0):
                        self.stop = batch.sum().item() > 3
                    sent = [self.stop if RANK == 0 else None]
                    dist.broadcast_object_list(sent, 0)
                    if RANK != 0:
                        self.stop = sent[0]
                    if self.stop:
                        break
    """,
    "a state of a job of which nothing says that it shards its models": """
        from accelerate import Accelerator

        def f(accelerator: Accelerator, out):
            if accelerator.is_main_process:
                accelerator.save_state(out)
            accelerator.wait_for_everyone()
    """,
    "a folder that the user has, or a name on a hub": """
        from pathlib import Path
        from huggingface_hub import snapshot_download

        def root(name):
            if not Path(name).is_dir():
                if dist.get_rank() == 0:
                    snapshot_download(name)
                dist.barrier()
            return name
    """,
    "whether the clock was read yet": """
        def main(loader, steps, x):
            start = None
            for step, batch in enumerate(loader):
                if step == 3:
                    start = time.perf_counter()
            if start is not None:
                dist.all_reduce(x)
    """,
    "a callee that asks the settings under another name": """
        def validate(x, opts, model_opts):
            if model_opts.distributed_eval:
                dist.all_reduce(x)

        def main(x, opts):
            if dist.get_rank() == 0 or opts.distributed_eval:
                validate(x, opts, model_opts=opts)
    """,
    "callbacks decide by what they are told": """
        class Trainer:
            def end(self, loader: torch.utils.data.DataLoader, x):
                for batch in loader:
                    self.control = self.handler.on_evaluate(self.control, batch.sum())
                if self.control.should_save:
                    dist.all_reduce(x)
    """,
    "a loader over all data in their order": """
        from torch.utils.data import DataLoader, SequentialSampler

        def evaluate(data, x):
            sampler = SequentialSampler(data)
            total = 0.0
            for batch in DataLoader(data, sampler=sampler, batch_size=4):
                total += batch.sum().item()
            if total > 3:
                dist.all_reduce(x)
    """,
    "whether each of them is there": """
        def f(loader: torch.utils.data.DataLoader, model, x):
            for batch in loader:
                if all(value is not None for value in model(batch)):
                    dist.all_reduce(x)
    """,
    "a mask of parameters, numbers that all ranks have, and masks that they agreed on": """
        def step(weights, mask):
            pruned = weights == 0
            if pruned.sum() == 0:
                dist.barrier()
            dist.all_reduce(mask)
            if not mask.any():
                dist.barrier()
    """,
    "keys in an order, a set of numbers, and a set that is only asked": """
        LAYERS, NAMES = {1, 2, 3}, {"loss", "accuracy"}

        def sync(first, second, name):
            for key in sorted(first.keys() | second.keys()):
                dist.all_reduce(first[key])
            for layer in LAYERS:
                dist.all_reduce(first[layer])
            if name in NAMES:
                dist.barrier()
    """,
    "a wrapped model whose module one rank runs": """
        from torch.nn.parallel import DistributedDataParallel
        # a model with BatchNorm

        def evaluate(model, loader, rank, distributed):
            if rank != 0:
                return None
            if distributed:
                model = model.module
            for x in loader:
                model(x)

        def main(model, loader, distributed):
            if distributed:
                model = DistributedDataParallel(model)
            evaluate(model, loader, dist.get_rank(), distributed)
    """,
    "as many pieces as the sampler says": """
        def f(loader: torch.utils.data.DataLoader, x):
            for batch in loader:
                pieces = batch["pieces"]
                for piece in range(pieces):
                    dist.all_reduce(x)
    """,
    "the number of an enumerated batch by keyword": """
        def f(loader: torch.utils.data.DataLoader, x, n):
            for step, batch in enumerate(iterable=loader):
                if step % n == 0:
                    dist.all_reduce(x)
    """,
    "a dictionary is filled on all ranks": """
        def evaluate(start):
            return {"score": 1.0, "elapse": time.time() - start}

        def f(step, x, start):
            info = {}
            if step % 10 == 0:
                info = evaluate(start)
            if info or step % 7 == 0:
                dist.all_reduce(x)
    """,
    "a group of rank 0 and processes of another kind": """
        from servers import connect

        class Learner:
            def __init__(self, servers):
                self.reward = None
                if dist.get_rank() == 0:
                    self._update_group = connect(backend="nccl", rank=0, world_size=len(servers) + 1)
                    self.reward = object()

            def sync(self, x):
                if self.reward:
                    dist.broadcast(x, 0, group=self._update_group)
    """,
    "a loop until nothing is left": """
        def train(prefetcher, model, x):
            images, target = prefetcher.next()
            while images is not None:
                model(images)
                dist.all_reduce(x)
                images, target = prefetcher.next()
    """,
    "a step with another optimizer in the other arm": """
        from fancy import Optimizer

        def main(model, loader, scaler: torch.cuda.amp.GradScaler):
            dist.init_process_group("nccl")
            model = torch.nn.parallel.DistributedDataParallel(model)
            if dist.get_rank() == 0:
                optimizer = Optimizer(model.parameters())
            else:
                optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for batch in loader:
                if dist.get_rank() == 0:
                    optimizer.step(scaler=scaler)
                else:
                    scaler.step(optimizer)
    """,
    "replicas over a group of the ranks that come there": """
        def main(model, x, rank):
            ranks = [0, 2]
            group = dist.new_group(ranks)
            if rank in ranks:
                model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
                optimizer = torch.optim.SGD(model.parameters(), 0.1)
                model(x).sum().backward()
                optimizer.step()
    """,
    "a manager that reduces what it was given, if anything": """
        class Log:
            def __enter__(self):
                self.losses = {}
                return self

            def __exit__(self, *error):
                for name, loss in self.losses.items():
                    dist.all_reduce(loss)

        def f(work):
            if dist.get_rank() == 0:
                with Log():
                    work()
    """,
    "mini-batches that a generator cuts": """
        def update(storage, x):
            generator = storage.mini_batch_generator(4, 8)
            for batch in generator:
                dist.all_reduce(x)
    """,
    "a job that the program itself makes one of one process": """
        def export(state, path):
            if dist.get_rank() != 0:
                return
            elif os.environ.get("WORLD_SIZE") != "1":
                os.environ["WORLD_SIZE"] = "1"
            if not dist.is_initialized():
                dist.init_process_group("gloo")
            dist.all_reduce(state)

        def prepare():
            if int(os.environ.get("RANK", 0)) != 0:
                return False
            os.environ.update({"RANK": "0", "WORLD_SIZE": "1"})
            return True

        def serve(state):
            if not prepare():
                return
            dist.init_process_group("gloo")
            if dist.get_rank() == 0:
                dist.all_reduce(state)

        def start():
            dist.init_process_group("gloo", rank=0, world_size=1)

        def test(state):
            start()
            if dist.get_rank() == 0:
                dist.all_reduce(state)
    """,
    "rank 0 calls the closure through its optimizer, the others when it tells them to": """
        def step(model, optimizer: torch.optim.Optimizer, signal, rank: int):
            def closure():
                if rank == 0:
                    signal.fill_(1)
                    dist.broadcast(signal, src=0)
                for param in model.parameters():
                    dist.broadcast(param.data, src=0)
                loss = model(signal)
                dist.all_reduce(loss)
                return loss

            if rank == 0:
                optimizer.step(closure)
                signal.fill_(0)
                dist.broadcast(signal, src=0)
            else:
                while True:
                    dist.broadcast(signal, src=0)
                    if signal.item() == 0:
                        break
                    closure()
    """,
    "pieces of a batch": """
        def train(model, train_loader, n, size):
            model = torch.nn.parallel.DistributedDataParallel(model)
            for batch in train_loader:
                inputs = batch[:, :-1]
                for i in range(n):
                    part = inputs[i * size : (i + 1) * size]
                    if part.shape[0] == 0:
                        break
                    model(part).sum().backward()
                for i in range(n):
                    part = inputs[i * size : (i + 1) * size]
                    if len(part) == 0 or part.size(0) == 0:
                        break
                    model(part).sum().backward()
    """,
    "batches of a stream that knows how many it has": """
        from torch.utils.data import DataLoader, IterableDataset

        class Shards(IterableDataset):
            def __len__(self):
                return -(-self.size // dist.get_world_size())

            def __iter__(self):
                yield from self.samples

        def main(x):
            for batch in DataLoader(Shards(), batch_size=4):
                dist.all_reduce(x)
    """,
    "a loop that is left in its first round, and a job that has ranks": """
        def main(x):
            for n in range(dist.get_rank() + 1):
                dist.all_reduce(x)
                break
            if dist.get_rank() == 1 or dist.get_world_size() > 0:
                dist.all_reduce(x)
    """,
    "the group that a list holds for this rank": """
        def forward(x, group):
            if group is not None:
                dist.broadcast(x, 0, group=group)

        def main(x, size):
            rank = dist.get_rank()
            groups = [dist.new_group([n, n + 1]) for n in range(size)]
            forward(x, group=groups[rank // 2])
    """,
    "a loop whose events are another rank's": """
        def main(x):
            rank = dist.get_rank()
            if rank == 0:
                k = 0
                while k < 3:
                    k += 1
                    if rank == 1:
                        dist.barrier()
            dist.all_reduce(x)
    """,
    "the number of the round that a generator hands on": """
        def with_last(it):
            last = None
            for x in it:
                if last is not None:
                    yield last, False
                last = x
            if last is not None:
                yield last, True

        def numbered(it):
            for i, batch in enumerate(it):
                yield i, batch

        def main(train_loader, x):
            for (i, batch), is_last in with_last(enumerate(train_loader, start=3)):
                if (i + 1) % 10 == 0 or is_last:
                    dist.all_reduce(x)
            for i, batch in numbered(train_loader):
                if i % 10 == 0:
                    dist.all_reduce(x)
    """,
    "an entry by a setting": """
        def train(model, train_loader, masks):
            for batch in train_loader:
                losses = {"class": model(batch)}
                if masks:
                    losses["mask"] = model(batch)
                for loss in losses.values():
                    dist.all_reduce(loss)
    """,
    "an object that both arms of a rank test make": """
        from shared import Memory

        class Reader:
            def __init__(self, path, size):
                self.memory = None
                if path:
                    self.memory = self.opened(path, size)
                if self.memory is not None:
                    dist.barrier()

            def opened(self, path, size) -> Memory:
                if dist.get_rank() % size == 0:
                    memory = Memory(path, create=True)
                else:
                    memory = Memory(path)
                return memory
    """,
    "a failure of ranks that share a batch": """
        def embed(images, parts, mesh):
            if images is not None:
                try:
                    check(images)
                    dist.all_gather(parts, images, group=mesh.get_group("sequence"))
                except Exception:
                    pass
    """,
    "processes that end before the job starts": """
        import sys

        def main(size, x):
            if int(os.environ["RANK"]) % size != 0:
                sys.exit(0)
            dist.init_process_group("nccl", world_size=int(os.environ["WORLD_SIZE"]) // size)
            dist.barrier()
    """,
    "whether all ranks have as large a batch": """
        def alike(size):
            sizes = [None, None]
            dist.all_gather_object(sizes, size)
            for other in sizes:
                if other != size:
                    return False
            return True

        def evaluate(train_loader, x):
            for batch in train_loader:
                if not alike(len(batch)):
                    continue
                dist.all_reduce(x)
    """,
    "a function that rank 0 alone runs, as the master of the others": """
        def serve(req, x):
            while True:
                if req.is_completed():
                    break
                dist.broadcast(x, 0)

        def master(req, x):
            serve(req, x)

        def work(x):
            while True:
                dist.broadcast(x, 0)

        def main(req, x):
            if dist.get_rank() == 0:
                master(req, x)
            else:
                work(x)
    """,
    "as many gradients as there are": """
        def average(parameters):
            grads = [p.grad for p in parameters if p.grad is not None]
            for grad in grads:
                dist.all_reduce(grad)
            if len(grads) > 8:
                dist.barrier()
    """,
    "a loader that a sampler divides": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.utils.data import DataLoader

        def validate(model, data, sampler):
            model = FSDP(model)
            for batch in DataLoader(data[dist.get_rank()::dist.get_world_size()], sampler=sampler):
                model(batch)
    """,
    "what a sharded model gives for a batch that all ranks have agreed on": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def check(model, batch):
            model = FSDP(model)
            dist.broadcast(batch, src=0)
            if model(batch).sum().item() > 3:
                dist.barrier()
    """,
    "the first rank is not the last": """
        def main(x):
            rank = dist.get_rank()
            if rank in (0,) and rank == dist.get_world_size() - 1:
                return
            dist.all_reduce(x)
    """,
    "a loop of a written number of rounds is as many calls": """
        def main(x):
            if dist.get_rank() == 0:
                dist.all_reduce(x)
                dist.all_reduce(x)
                dist.all_reduce(x)
            else:
                for _ in range(3):
                    dist.all_reduce(x)
            if dist.get_rank() == 0:
                [dist.barrier() for _ in range(2)]
            else:
                dist.barrier()
                dist.barrier()
    """,
    "a loop in which this rank has nothing to say": """
        def main(x):
            rank = dist.get_rank()
            if rank == 0:
                for _ in range(5):
                    if rank > 0:
                        dist.barrier()
            dist.all_reduce(x)
    """,
    "a body that is for the types that nobody registered": """
        import functools

        @functools.singledispatch
        def close(item):
            raise NotImplementedError

        @close.register
        def _(item: list):
            item.clear()

        def main(x, items):
            if dist.get_rank() == 0:
                close(items)
            dist.all_reduce(x)
    """,
    "an exception that the handler around is not for": """
        import contextlib

        def main(x, flag):
            with contextlib.suppress(ValueError):
                if dist.get_rank() == 0:
                    raise RuntimeError
                if flag:
                    raise ValueError
                return
            dist.all_reduce(x)
    """,
    "an exception that is raised again, which a handler for interrupts is not for": """
        def save(model, path):
            if dist.get_rank() == 0:
                try:
                    write(model, path)
                except Exception:
                    remove(path)
                    raise
            dist.barrier()

        def main(model, path):
            try:
                save(model, path)
                dist.barrier()
            except KeyboardInterrupt:
                pass
    """,
    "what choices that exclude each other lead to": """
        def main(cfg, x, deadline, count):
            if not cfg.save:
                if cfg.save:
                    if time.time() > deadline:
                        dist.barrier()
            if count == 0:
                if dist.get_rank() == 0 and count > 1:
                    dist.all_reduce(x)
            if count > 3:
                return
            if count >= 5 and dist.get_rank() == 0:
                dist.all_reduce(x)
    """,
    "alternatives in a pattern": """
        def main(x):
            rank = dist.get_rank()
            if rank == 0:
                match rank:
                    case 0 | 2:
                        pass
                    case _:
                        dist.all_reduce(x)
    """,
    "what a function gives that always gives something, by its annotation": """
        from typing import Any, Dict

        def gathered(model) -> Dict[str, Any]:
            return model.gathered()

        def convert(state=None):
            if state is None:
                dist.barrier()
            torch.save(state, "out")

        def finish(model):
            state = gathered(model)
            if dist.get_rank() == 0:
                convert(state)
    """,
    "what a batch has, and what is no batch": """
        from transformers import Trainer

        class Tuner(Trainer):
            def compute_loss(self, model, inputs, return_outputs=False):
                names = list(inputs["metrics"].keys())
                if names:
                    dist.barrier()
                if "labels" in inputs or return_outputs:
                    dist.barrier()

        class Other:
            def compute_loss(self, model, inputs):
                if inputs.sum().item() > 3:
                    dist.barrier()
    """,
    "text is no number on any rank": """
        def f(x):
            if os.environ["RANK"] == 0:
                dist.barrier()
    """,
    "batches that are asked for again from the start": """
        from torch.nn.parallel import DistributedDataParallel

        def train(net, batch_iterator, make, steps):
            model = DistributedDataParallel(net)
            for step in range(steps):
                try:
                    batch = next(batch_iterator)
                except StopIteration:
                    batch_iterator = make()
                    batch = next(batch_iterator)
                model(batch).sum().backward()
    """,
    "training ends with its batches": """
        from torch.nn.parallel import DistributedDataParallel

        def train(net, train_loader, optimizer):
            model = DistributedDataParallel(net)
            batches = iter(train_loader)
            while True:
                batch = next(batches, None)
                if batch is None:
                    break
                model(batch).sum().backward()
                optimizer.step()
    """,
    "a flag that any loss sets": """
        from torch.utils.data import DataLoader

        class Meter:
            def __init__(self):
                self.sum, self.ready = 0.0, False

            def update(self, loss):
                self.sum += loss
                self.ready = True

        def train(model, loader: DataLoader, x):
            meter = Meter()
            for batch in loader:
                meter.update(model(batch).item())
                if meter.ready:
                    dist.all_reduce(x)
    """,
    "an object that the loss of all ranks tells to stop": """
        from torch.utils.data import DataLoader

        class Stopper:
            def __init__(self):
                self.best, self.stop = 1e9, False

            def update(self, loss):
                if loss > self.best:
                    self.stop = True

        def train(model, loader: DataLoader, x):
            stopper = Stopper()
            for batch in loader:
                loss = model(batch)
                dist.all_reduce(loss)
                stopper.update(loss.item())
                if stopper.stop:
                    break
                dist.all_reduce(x)
    """,
    "a flag that a handler sets which no signal calls": """
        class Trainer:
            def __init__(self, button):
                self._pressed = False
                button.connect(self._press)

            def _press(self, number, frame):
                self._pressed = True

            def fit(self, loader, x):
                for batch in loader:
                    if self._pressed:
                        break
                    dist.all_reduce(x)
    """,
    "a handler whose variable is its own, and one that is registered when the loop is done": """
        import signal

        def fit(loader, x):
            caught = False

            def catch(number, frame):
                caught = True

            signal.signal(signal.SIGTERM, catch)
            for batch in loader:
                if caught:
                    break
                dist.all_reduce(x)

        class Trainer:
            def _catch(self, number, frame):
                self.later = True

            def fit(self, loader, x):
                self.caught = False
                signal.signal(signal.SIGTERM, self._catch)
                for batch in loader:
                    if self.caught:
                        break
                    dist.all_reduce(x)
    """,
    "a meter of calls, one whose ranks agree on the count, and one that asks for many": """
        class Meter:
            def __init__(self):
                self.count = 0
                self.calls = 0
                self.sum = 0.0

            def update(self, value, n=1):
                self.sum += value * n
                self.count += n
                self.calls += 1

            def synchronize(self):
                if self.calls == 0:
                    return
                dist.all_reduce(torch.tensor(self.sum))

            def agreed(self):
                count = torch.tensor(self.count)
                dist.all_reduce(count)
                if count == 0:
                    return
                dist.all_reduce(torch.tensor(self.sum))

            def later(self):
                if self.count > 100:
                    dist.all_reduce(torch.tensor(self.sum))
    """,
    "Horovod that averages the loss alone": """
        import horovod.torch as hvd

        def fit(model, optimizer, loader):
            for batch in loader:
                loss = model(batch)
                if torch.isnan(loss):
                    continue
                loss.backward()
                optimizer.step()
            hvd.allreduce(loss)
    """,
    "a signal that the ranks tell each other of": """
        import signal

        class Trainer:
            def __init__(self):
                self._caught = False
                signal.signal(signal.SIGTERM, self._catch)

            def _catch(self, number, frame):
                self._caught = True

            def fit(self, loader, x):
                for batch in loader:
                    caught = torch.tensor(int(self._caught))
                    dist.all_reduce(caught)
                    if caught.item():
                        break
                    dist.all_reduce(x)
    """,
    "a process that ends with an error": """
        import sys

        def f(x, ok):
            if dist.get_rank() == 0 and not ok:
                sys.exit("not ok")
            dist.all_reduce(x)
    """,
    "all processes end here, or the others have nothing left to wait for": """
        import sys

        def f(x, done):
            if done:
                sys.exit()
            dist.all_reduce(x)
            if dist.get_rank() != 0:
                sys.exit()
            print(x)
    """,
    "a process that leaves the group on its way out": """
        import sys

        def f(x):
            try:
                if dist.get_rank() != 0:
                    sys.exit(0)
                print(x)
            finally:
                dist.barrier()
    """,
    "a barrier behind which those that found the file missing make it": """
        def f(path, make):
            if not os.path.exists(path):
                dist.barrier()
                make(path)
                dist.barrier()
    """,
    "each node shares an object in a group of its own": """
        def share(shared, local, size):
            node, src, at = int(os.environ["GROUP_RANK"]), 0, 0
            while src < size:
                group = dist.new_group(ranks=list(range(src, src + local)))
                if node == at:
                    dist.broadcast_object_list(shared, src=src, group=group)
                dist.destroy_process_group(group)
                src, at = src + local, at + 1
    """,
    "a barrier that a helper has, behind which those that found the file missing save it": """
        def compute(data):
            dist.barrier()
            return data

        def f(path, data, check):
            if not os.path.exists(path):
                data = compute(data)
                if check:
                    print("checked")
                data.save_to_disk(path)
            return data
    """,
    "a barrier for those that were given no file, with other settings": """
        def f(args, data, initial, split):
            if os.path.exists(args.file):
                data = torch.load(args.file)
            else:
                if args.short:
                    data = split(data, args.workers)
                dist.barrier()
            return data
    """,
    "a barrier for those that were given no file": """
        def f(path, initial, state):
            if os.path.exists(path):
                state = torch.load(path)
            else:
                if dist.get_rank() == 0:
                    torch.save(state, initial)
                dist.barrier()
                state = torch.load(initial)
            return state
    """,
    "a barrier for all after the look for the file": """
        def f(path, make):
            if not os.path.exists(path):
                if dist.get_rank() == 0:
                    make(path)
            dist.barrier()
            return open(path)
    """,
    "a loop over a list that is written out": """
        def reduce_all(tensors):
            for tensor in tensors:
                dist.all_reduce(tensor)
            return tensors

        def train(model, loader):
            for batch in loader:
                loss, accuracy = reduce_all([model(batch), batch["label"]])
    """,
    "a share of what was cut into a multiple of the ranks": """
        def f(seeds, size):
            count = ((len(seeds) - 1) // (size * dist.get_world_size()) + 1) * dist.get_world_size()
            for piece in torch.as_tensor(seeds).tensor_split(count)[dist.get_rank() :: dist.get_world_size()]:
                dist.barrier()

        def g(features, rank, world, size):
            count = ((len(features) - 1) // size // world + 1) * world
            pieces = torch.nn.functional.pad(features, [0, -len(features) % count]).chunk(count)
            for piece in pieces[rank::world]:
                dist.broadcast(piece, src=0)
    """,
    "micro-batches of a batch, as many as it holds": """
        import math

        def steps(batch, args):
            return max(math.ceil(len(batch) / args.pieces - 0.5), 1)

        def f(loader, args, x):
            for batch in loader:
                every = steps(batch, args)
                for number in range(batch["input"].shape[0] // 4):
                    dist.all_reduce(x)
                    if (number + 1) % every == 0:
                        dist.barrier()
                rows, length = batch["input"].shape
                for number in range(batch["input"].size(0) + rows):
                    dist.all_reduce(x)
    """,
    "a rank within a group that is its rank along the axis, or is not for the whole group": """
        class Engine:
            def configure(self, groups):
                place = dist.get_rank(group=self.zp_group)
                dp_rank = groups.data_parallel_rank()
                self.saves = place == dp_rank

            def save(self):
                if self.saves:
                    dist.barrier(group=self.zp_group)
    """,
    "the group along an axis of a mesh, whose ranks share their batch": """
        def f(loader, tp_mesh, mode, x):
            for batch in loader:
                for item in batch["items"]:
                    dist.all_reduce(x, group=tp_mesh.get_group())
                    dist.all_reduce(x, group=mode.get_group(mode.TENSOR))
    """,
    "what a batch holds, one after the other": """
        def gather(tensors):
            for tensor in tensors:
                dist.all_reduce(tensor)

        def f(loader):
            for views, labels in loader:
                gather(views)
    """,
    "a number from an enumerate() of another name": """
        from tqdm import tqdm

        def f(train_loader, every):
            with tqdm(enumerate(iter(train_loader), start=3), disable=True) as bar:
                steps = iter(bar)

                def fetch():
                    step, batch = next(steps)
                    return batch.to("cuda"), step

                for _ in range(10):
                    batch, step = fetch()
                    if step % every == 0:
                        dist.barrier()
            numbered = enumerate(train_loader)
            for step, batch in numbered:
                if step % every == 0:
                    dist.barrier()
    """,
    "a plan that the caller has made": """
        class Plan:
            pass

        def shard(module, plan=None):
            if plan is None:
                values = [None]
                dist.broadcast_object_list(values, src=0)
                plan = values[0]
            return plan

        def f(module):
            if dist.get_rank() == 0:
                shard(module, Plan())
    """,
    "a root that is named by a parameter, which is a rank's by its name alone": """
        def share(value, rank: int = 0):
            values = [value]
            dist.broadcast_object_list(values, src=rank)
            return values[0]
    """,
    "a host's name is never missing": """
        import socket

        def connect(x):
            address = socket.gethostname()
            if address is not None:
                dist.all_reduce(x)
    """,
    "an early stop by a loss that the ranks have averaged, by an object and by itself": """
        class Stopper:
            def __init__(self):
                self.stop = False

            def __call__(self, loss):
                if loss > 3:
                    self.stop = True

        def fit(model, loader):
            model, stopper = torch.nn.parallel.DistributedDataParallel(model), Stopper()
            for x in loader:
                losses = []
                loss = model(x).mean()
                loss.backward()
                losses.append(loss.item())
                mean = torch.tensor(losses).mean()
                dist.all_reduce(mean)
                stopper(mean.item())
                if stopper.stop or mean.item() > 5:
                    break
    """,
    "a stopper that averages the loss itself": """
        class Stopper:
            def __init__(self):
                self.stop = False

            def __call__(self, loss):
                loss = torch.tensor(loss)
                dist.all_reduce(loss)
                if loss > 3:
                    self.stop = True

        def fit(model, loader):
            model, stopper = torch.nn.parallel.DistributedDataParallel(model), Stopper()
            for x in loader:
                loss = model(x).mean()
                loss.backward()
                stopper(loss.item())
                if stopper.stop:
                    break
    """,
    "losses in a list, as many on all ranks": """
        def fit(model, loader):
            model = torch.nn.parallel.DistributedDataParallel(model)
            losses = []
            for x in loader:
                losses.append(model(x).mean().item())
            if losses and len(losses) > 3:
                dist.barrier()
            for _ in losses:
                dist.barrier()
    """,
    "a launcher's variable is set on all ranks, also as text 0": """
        def f(x):
            if not os.environ.get("RANK"):
                return
            dist.barrier()

        def g(x):
            distributed = bool(os.getenv("LOCAL_RANK"))
            if distributed:
                dist.barrier()
    """,
    "a dictionary's loss, beside its clock": """
        def step(model, batch):
            began = time.time()
            loss = model(batch)
            dist.all_reduce(loss)
            return {"loss": loss.item(), "took": time.time() - began}

        def f(model, batch, best):
            stats = step(model, batch)
            if stats["loss"] < best:
                dist.barrier()
    """,
    "each arm asks in its own way for the same": """
        def f(batch, args, x):
            if dist.get_rank() == 0:
                dist.broadcast(x, src=0)
                if "mask" in batch:
                    dist.broadcast(batch["mask"], src=0)
            else:
                dist.broadcast(x, src=0)
                if args.make_mask:
                    dist.broadcast(torch.empty(4), src=0)
    """,
    "a project's own get_dist_info that tells first whether there are ranks": """
        def get_dist_info():
            if all(name in os.environ for name in ("RANK", "WORLD_SIZE")):
                return True, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            return False, 0, 1

        def main():
            distributed, rank, world_size = get_dist_info()
            if distributed:
                dist.barrier()
    """,
    "a get_dist_info of another project that returns more than rank and world size": """
        from elsewhere import get_dist_info

        def main():
            distributed, rank, local_rank, world_size = get_dist_info()
            if distributed:
                dist.barrier()
    """,
    "an iterator of batches whose end the ranks agree on": """
        def train(loss, batch_iterator):
            for batch in batch_iterator:
                done = torch.zeros(1)
                dist.all_reduce(done)
                if done.item() > 0:
                    break
                dist.all_reduce(loss(batch))
    """,
    "an iterator over what a sampler has made even": """
        def train(loss, dataset):
            sampler = torch.utils.data.DistributedSampler(dataset)
            batch_iterator = iter(torch.utils.data.DataLoader(dataset, sampler=sampler))
            for batch in batch_iterator:
                dist.all_reduce(loss(batch))
    """,
    "a stream without end": """
        class Lines(torch.utils.data.IterableDataset):
            def __iter__(self):
                while True:
                    yield 1

        def train(loss):
            for batch in torch.utils.data.DataLoader(Lines()):
                dist.all_reduce(loss(batch))
    """,
    "a loader": """
        def train(loss, train_loader):
            for batch in train_loader:
                dist.all_reduce(loss(batch))
    """,
    "work that is waited for": """
        def f(x):
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            return dist.all_reduce(x, async_op=True)
    """,
    "complementary barriers": """
        def f():
            if dist.get_rank() != 0:
                dist.barrier()
            print()
            if dist.get_rank() == 0:
                dist.barrier()
    """,
    "complementary barriers around a yield": """
        import contextlib

        @contextlib.contextmanager
        def first(rank):
            if rank not in (-1, 0):
                dist.barrier()
            yield
            if rank == 0:
                dist.barrier()

        def f(rank):
            with first(rank):
                return 1
    """,
    "nested complementary barriers": """
        def f(is_local_main_process):
            is_main = dist.get_rank() == 0
            is_local = int(os.environ["LOCAL_RANK"]) == 0
            if not is_main and is_local:
                dist.barrier()
            if not is_local:
                dist.barrier()
                dist.barrier()
            print()
            if is_main:
                dist.barrier()
                dist.barrier()
            if not is_main and is_local:
                dist.barrier()
    """,
    "both arms": """
        def f(x, buffer):
            if dist.get_rank() == 0:
                dist.broadcast(x, src=0)
            else:
                dist.broadcast(buffer, src=0)
    """,
    "both arms loop": """
        def f(tensors):
            if dist.get_rank() == 0:
                for t in tensors:
                    dist.broadcast(t, src=0)
            else:
                for i in range(len(tensors)):
                    dist.broadcast(torch.empty(3), src=0)
    """,
    "one barrier on each way out": """
        def f(config):
            if dist.get_rank() == 0:
                if config is None:
                    dist.barrier()
                    return
                print()
            dist.barrier()
    """,
    "agreed on by a collective": """
        def f(x, flag):
            stop = torch.tensor(time.time() > flag)
            dist.all_reduce(stop)
            if stop.item():
                dist.barrier()
    """,
    "agreed on in a helper": """
        def synchronize_flag(flag):
            if dist.is_initialized():
                t = torch.tensor(flag)
                dist.broadcast(t, 0)
                return t.item()
            return flag

        def f(start):
            if synchronize_flag(time.time() > start):
                dist.barrier()
    """,
    "sentinel": """
        def f():
            rank = int(os.environ.get("RANK", -1))
            if rank != -1:
                dist.barrier()
    """,
    "initialised": """
        def f():
            if dist.is_initialized() and dist.get_world_size() > 1:
                dist.barrier()
    """,
    "error exit": """
        def f(path):
            if dist.get_rank() == 0 and not path:
                raise ValueError
            dist.barrier()
    """,
    "point to point": """
        def f(x):
            if dist.get_rank() == 0:
                dist.send(x, 1)
            else:
                dist.recv(x, 0)
    """,
    "members of the group": """
        def f(x, ranks):
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                dist.all_reduce(x, group=group)
    """,
    "stages are whole data-parallel groups": """
        def f(x, pp_rank, dp_group):
            if pp_rank == 0:
                dist.all_reduce(x, group=dp_group)
    """,
    "each group is made by all": """
        def f(groups):
            mine = None
            for ranks in groups:
                group = dist.new_group(ranks)
                if dist.get_rank() in ranks:
                    mine = group
            return mine
    """,
    "ranks take turns": """
        def f():
            for i in range(dist.get_world_size()):
                if i == dist.get_rank():
                    print()
                dist.barrier()
    """,
    "a flag that an attribute holds as it is, and another one together with the rank": """
        class Trainer:
            def __init__(self, shared=True):
                self.shared = shared
                self.evaluates = dist.get_rank() == 0 or shared

            def evaluate(self, x):
                if self.evaluates:
                    if self.shared:
                        dist.all_reduce(x)
    """,
    "settings that a constructor refuses together": """
        class Trainer:
            def __init__(self, settings):
                self.sharding = settings.sharding
                self.change_bias = settings.change_bias
                self._check()
                if self.sharding.enabled and self.change_bias:
                    raise ValueError("not with shards")

            def _check(self):
                if self.sharding.enabled and self.averaged:
                    raise ValueError("no average of shards")

            def finish(self):
                if self.change_bias and dist.get_rank() == 0:
                    self.save()
                if self.averaged and dist.get_rank() == 0:
                    self.save()

            def save(self):
                if self.sharding.enabled:
                    dist.barrier()
    """,
    "only the payload is prepared on rank 0": """
        def f():
            box = [None]
            if dist.get_rank() == 0:
                box = [os.listdir(".")]
            dist.broadcast_object_list(box, src=0)
            return box[0]
    """,
    "barrier in finally": """
        def f(path):
            try:
                if dist.get_rank() == 0:
                    torch.load(path)
            finally:
                dist.barrier()
    """,
    "no distributed gather": """
        def f(x, index):
            if dist.get_rank() == 0:
                return torch.gather(x, 0, index)
    """,
    "a name that is no rank": """
        def f(lora_rank, load_on_all_ranks):
            if lora_rank == 0 or load_on_all_ranks:
                dist.barrier()
    """,
    "unresolved call": """
        import somewhere

        def f(x):
            if dist.get_rank() == 0:
                somewhere.save(x)
    """,
    "a counter disables the barrier": """
        INSIDE = 0

        def barrier():
            if INSIDE >= 1:
                return
            dist.barrier()

        def main_only(function):
            def wrapper(*args):
                global INSIDE
                if dist.get_rank() == 0:
                    INSIDE += 1
                    function(*args)
                    INSIDE -= 1
            return wrapper

        @main_only
        def save():
            barrier()

        def f():
            save()
    """,
    "a choice that only other ranks come to": """
        def f(path):
            if dist.get_rank() != 0:
                dist.barrier()
            if dist.get_rank() != 0 and os.path.exists(path):
                return path
            if dist.get_rank() == 0:
                dist.barrier()
    """,
    "the first entry of a data set": """
        def f(dataset, x):
            if "text" in next(iter(dataset)) and len(next(iter(dataset))) > 1:
                dist.all_reduce(x)
    """,
    "one setting in two functions": """
        def share(x, args):
            if getattr(args, "sharded", False):
                dist.all_reduce(x)

        def other(x, options):
            share(x, options)

        def f(x, state):
            if not state.args.sharded and dist.get_rank() != 0:
                return
            share(x, state.args)
    """,
    "a loop that communicates in one mode only": """
        def f(x, sharded):
            if not sharded and dist.get_rank() != 0:
                return
            while True:
                if sharded:
                    dist.broadcast(x, src=0)
                    if x.sum() == 0:
                        break
                elif x.min() > 3:
                    break
    """,
    "bars that one rank shows around the batches": """
        class Logged:
            def __init__(self, bar, place):
                self.bar = bar

        def wrap(bar, place, name):
            if place:
                bar = Logged(bar, place)
            if name:
                bar = Logged(bar, name)
            return bar

        def f(bar, args, x):
            main = dist.get_rank() == args.main
            progress = wrap(bar, args.place if main else None, args.name if main else None)
            for batch in enumerate(progress):
                dist.all_reduce(x)
    """,
    "a stage by its name": """
        def get_pipeline_model_parallel_rank():
            return dist.get_rank() % 4

        def is_rank_in_embedding_group():
            return get_pipeline_model_parallel_rank() == 0

        def f(x, data_parallel_group, embedding_group):
            if get_pipeline_model_parallel_rank() == 0:
                dist.all_reduce(x, group=data_parallel_group)
            if is_rank_in_embedding_group():
                dist.all_reduce(x, group=embedding_group)
    """,
    "leaves the loop with all": """
        def f(loader, x):
            while True:
                done = torch.tensor(time.time() > 3)
                dist.all_reduce(done)
                if done.item():
                    break
                dist.all_reduce(x)
    """,
    "a condition of the callee is that of the caller, whoever else calls it": """
        def sync(x, on):
            if on:
                dist.all_reduce(x)

        def other(x, cfg):
            sync(x, len(cfg.a) + 1 > 2)

        def one(x, cfg):
            on = len(cfg.b) + 2 > 5
            if not on and dist.get_rank() == 0:
                sync(x, on)

        def two(x, cfg):
            on = len(cfg.c) + 2 > 7
            if dist.get_rank() == 0 and not on:
                sync(x, on)
    """,
    "the same question is asked by the caller and by the callee": """
        def level(cfg):
            return cfg.levels[0] + 1

        def reduced(x, cfg):
            if level(cfg) > 3:
                dist.all_reduce(x)

        def main(x, cfg):
            if level(cfg) <= 3 and dist.get_rank() == 0:
                reduced(x, cfg)
            if not 3 < level(cfg):
                if dist.get_rank() == 0:
                    reduced(x, cfg)
    """,
    "there is but one rank, however that is put": """
        def world():
            if not dist.is_initialized():
                return 1
            return dist.get_world_size()

        def reduced(x):
            if world() < 2:
                return x
            dist.all_reduce(x)

        def one(x):
            several = world() > 1
            if dist.get_rank() == 0 and not several:
                reduced(x)

        def two(x):
            if dist.get_world_size() != 1:
                return
            if dist.get_rank() == 0:
                dist.all_reduce(x)
    """,
    "an argument that is known decides which rank is asked for": """
        def is_master(args, local=False):
            return args.local_rank == 0 if local else args.rank == 0

        def evaluate(x, args):
            if not is_master(args):
                return
            print(x)

        def main(x, args):
            if is_master(args):
                print(x)
            evaluate(x, args)
            y = torch.zeros(1) if is_master(args) else None
            if args.rank == 0:
                dist.broadcast(x, 0)
            if not is_master(args):
                dist.broadcast(x, 0)
    """,
    "None is what the configuration makes it": """
        def extra(loader, x, cfg, model, loss_of):
            for batch in loader:
                loss = loss_of(model(batch), batch["labels"])
                more = None
                if isinstance(loss, (list, tuple)):
                    loss, more = loss
                if cfg.mask:
                    if more:
                        dist.all_reduce(more)
                    if more is not None:
                        dist.all_reduce(more)

        class Workers:
            def make(self):
                if self.workers is not None:
                    if all(w.is_alive() for w in self.workers):
                        return self.workers
                return [1]

            def collect(self, cfg, x):
                workers = None
                if cfg.several:
                    workers = [w for w in self.make()]
                if workers is None:
                    return
                dist.all_reduce(x)

        def images(loader, x):
            for inputs in loader:
                images = inputs["images"] if "images" in inputs else None
                if images is not None:
                    dist.all_reduce(x)
    """,
    "what never returns does not go on": """
        from typing import NoReturn
        import pytest

        class Failure(Exception):
            pass

        def refuse(what) -> NoReturn:
            handle(what)

        def one(loader, x):
            for batch in loader:
                if batch["n"].item() > 3:
                    refuse("too many")
                dist.all_reduce(x)

        def two(x, path):
            try:
                open(path)
            except Exception as error:
                pytest.skip(str(error))
            dist.all_reduce(x)

        def three(dataset, x):
            batches = iter(torch.utils.data.DataLoader(dataset, sampler=torch.utils.data.DistributedSampler(dataset)))
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                dist.all_reduce(x)
    """,
    "an object that works on one device": """
        class Trainer:
            def __init__(self, devices, num_nodes=1):
                self.devices = devices

            def save_checkpoint(self, path):
                dist.barrier()

        def main(path):
            trainer = Trainer(devices=1)
            if path.exists():
                return
            trainer.save_checkpoint(path)
    """,
    "pieces of a batch, and sequences within a configured length": """
        def generate(ids, x, longest, count=None):
            length = ids.size(1)
            if count is None:
                count = longest - length
            if length + count > longest or count == 0:
                return
            dist.all_reduce(x)

        def main(loader, x, cfg):
            for batch in loader:
                ids = batch["input_ids"]
                for start in range(0, ids.size(0), cfg.size):
                    if ids[start : start + cfg.size].size(0) == 0:
                        break
                    generate(ids[start : start + cfg.size], x, cfg.longest)
    """,
    "a number that a comprehension makes of the sizes of batches": """
        def summed(loader):
            if sum(x.size(0) for x in loader) > 8:
                dist.barrier()

        def counted(model, loader):
            losses = [model(x).mean().item() for x in loader]
            if len(losses) > 8:
                dist.barrier()
    """,
    "the first rank of each node is in the group of these": """
        def strided(x, rank, node=8):
            leaders = dist.new_group(list(range(0, dist.get_world_size(), node)))
            if rank % 8 == 0:
                dist.all_reduce(x, group=leaders)

        def filtered(x, rank):
            leaders = dist.new_group([r for r in range(dist.get_world_size()) if r % 8 == 0])
            if rank % 8 == 0:
                dist.all_reduce(x, group=leaders)

        def multiples(x, rank, nodes):
            leaders = dist.new_group([8 * n for n in range(nodes)])
            if rank % 8 == 0:
                dist.all_reduce(x, group=leaders)

        def all_but_the_last(x, rank):
            world = dist.get_world_size()
            workers = dist.new_group(list(range(world - 1)))
            if rank != world - 1:
                dist.all_reduce(x, group=workers)

        def by_node(x, size):
            groups = {}
            for i in range(dist.get_world_size() // size):
                groups[i] = dist.new_group(range(i * size, (i + 1) * size))
            stage = dist.get_rank() // size
            if stage == 0:
                dist.all_reduce(x, group=groups[0])
            else:
                dist.all_reduce(x, group=groups[stage])

        def counted(x, rank):
            n = torch.cuda.device_count()
            leaders = dist.new_group([n * i for i in range(dist.get_world_size() // n)])
            if rank % n == 0:
                dist.all_reduce(x, group=leaders)
    """,
    "the ranks that enter are those of the group": """
        def one(x):
            ranks = [0, 2]
            group = dist.new_group(ranks)
            if dist.get_rank() in [0, 2]:
                dist.all_reduce(x, group=group)
            if dist.get_rank() == 0 or dist.get_rank() == 2:
                dist.all_reduce(x, group=group)

        def two(x, rank):
            group = dist.new_group([0])
            if rank == 0:
                dist.all_reduce(x, group=group)

        def three(x, stages, rank):
            group = stages.make_group_of([0, 2])
            if rank in [0, 2]:
                dist.barrier(group=group)

        def four(x, groups, src):
            inner, outer = groups
            if dist.get_rank() == src:
                if outer is not None:
                    dist.all_reduce(x, group=outer)
    """,
    "a metric of one's own that is not to communicate": """
        import torchmetrics

        class Accuracy(torchmetrics.Metric):
            def __init__(self):
                super().__init__(sync_on_compute=False)

            def update(self, x):
                self.hits = x.sum()

            def compute(self):
                return self.hits / 2

        class Probe:
            def __init__(self):
                self.accuracy = Accuracy()

            def show(self):
                if dist.get_rank() == 0:
                    print(self.accuracy.compute())
    """,
    "gradients are averaged, and a metric may keep to its rank": """
        from torch.nn.parallel import DistributedDataParallel
        from torchmetrics.aggregation import RunningMean

        class Loop:
            def __init__(self, model, microbatch):
                self.microbatch = microbatch
                self.model = DistributedDataParallel(model)

            def run(self, batch, x):
                for start in range(0, batch.shape[0], self.microbatch):
                    dist.all_reduce(x)
                if any(not torch.isfinite(p.grad).all() for p in self.model.parameters()):
                    return
                dist.all_reduce(x)

        def late(limit, loader):
            mean = RunningMean(window=3, sync_on_compute=False).to("cuda")
            for batch in loader:
                mean.update(batch)
                if time.time() > limit:
                    break
                print(mean.compute())
    """,
    "a metric that is gathered by a function of one's own": """
        from torchmetrics.image.fid import FrechetInceptionDistance

        def alone(t, group=None):
            return [t]

        def f(images, settings):
            fid = FrechetInceptionDistance(**settings, dist_sync_fn=alone)
            fid.update(images, real=True)
            if dist.get_rank() == 0:
                print(fid.compute())
    """,
    "differentiable functions that all ranks apply, and one that has nothing to communicate": """
        class Sum(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, everywhere):
                if everywhere:
                    dist.all_reduce(x)
                return x

            @staticmethod
            def backward(ctx, grad):
                return grad, None

        class Sums(torch.nn.Module):
            def apply(self, function):
                return function(self)

            def forward(self, x):
                dist.all_reduce(x)
                return x

        def f(x):
            total = Sum.apply(x, True)
            if dist.get_rank() == 0:
                Sum.apply(x, False)
                Sums().apply(print)
            return total
    """,
    "an object that was told not to": """
        class Directory:
            def __init__(self, path, sync=True):
                self.path = path
                self.sync = sync
                if sync:
                    dist.barrier()

            def __enter__(self):
                if self.sync:
                    dist.barrier()

            def __exit__(self, *raised):
                pass

        class Logger:
            def __init__(self, sync):
                self.sync = sync

            def log(self, x):
                if self.sync:
                    dist.all_reduce(x)

        def main(path, x):
            if dist.get_rank() == 0:
                with Directory(path, sync=False):
                    print(path)
                Logger(False).log(x)
    """,
    "a size that one rank sends first decides on both sides": """
        def sizes(batch, x, tp_rank, src, group):
            def send(item):
                dist.broadcast(item, src, group=group)

            for batch in loader:
                if tp_rank == 0:
                    n = int(batch["lengths"].numel())
                    size = torch.tensor(n)
                    send(size)
                    if n > 0:
                        send(x)
                else:
                    size = torch.tensor(0)
                    send(size)
                    if int(size.item()) > 0:
                        send(x)
    """,
    "the time that all ranks have agreed on": """
        class Trainer:
            def __init__(self):
                self.start = time.time()
                self.spent = None

            def _aggregate(self, outputs, *more):
                gathered = [None] * dist.get_world_size()
                dist.all_gather_object(gathered, (outputs, more))
                return gathered[0], [sum(each) for each in zip(*gathered)]

            def step(self, x):
                here = time.time() - self.start
                outputs, (count, total) = self._aggregate(x, 1, here)
                self.spent = total / dist.get_world_size()

            def time(self):
                if self.spent is None:
                    return time.time() - self.start
                return self.spent

        def train(limit, x):
            trainer = Trainer()
            for _ in range(10):
                trainer.step(x)
                if trainer.time() > limit:
                    break
    """,
    "every caller keeps the ranks together": """
        def log(x, reduce):
            if dist.get_rank() == 0 and reduce:
                dist.all_reduce(x)

        def one(x):
            log(x, False)

        def shard(x, rank):
            if rank == 0:
                dist.all_reduce(x)

        def all_of_them(x):
            for rank in range(4):
                shard(x, rank)

        def before():
            if dist.get_rank() != 0:
                dist.barrier()

        def after():
            if dist.get_rank() == 0:
                dist.barrier()

        def both(path):
            before()
            open(path)
            after()
    """,
    "nothing there can raise": """
        def f(x):
            rank = dist.get_rank()
            if rank == 0:
                try:
                    y = 1
                except ValueError:
                    return
            dist.all_reduce(x)
    """,
    "a job of one process": """
        def smoke(x):
            dist.init_process_group("gloo", rank=0, world_size=1)
            if dist.get_rank() == 0:
                dist.all_reduce(x)
    """,
    "a barrier in the rounds that all ranks have": """
        def f(names, rank, x):
            fewest = len(names) // dist.get_world_size() - 1
            mine = names[dist.get_rank() :: dist.get_world_size()]
            for i, name in enumerate(mine):
                print(name)
                if i < fewest and (i + 1) % 20 == 0:
                    dist.barrier()
    """,
    "parameters are gathered among the ranks of one pipeline stage": """
        import deepspeed
        from megatron.core import mpu

        def build(weight):
            if mpu.is_pipeline_first_stage():
                with deepspeed.zero.GatheredParameters(weight, modifier_rank=0):
                    weight.zero_()
    """,
    "a rank that has no value for what it reads fails there": """
        def prompt(path, x):
            if dist.get_rank() == 0:
                count = len(open(path).readlines())
            at = 0
            while True:
                if dist.get_rank() == 0:
                    at += 1
                dist.broadcast(x, 0)
                if at == count:
                    return

        def counted(path, x):
            if dist.get_rank() == 0:
                count = len(open(path).readlines())
            for _ in range(count):
                dist.broadcast(x, 0)
    """,
}


EXIT = """
    def f(model, x, path):
        if dist.get_rank() == 0 and not path:
            print("no path")
            return -1
        model = torch.nn.parallel.DistributedDataParallel(model)  # !implicit-collective
        model(x).sum().backward()
"""


@pytest.mark.parametrize("source", PARTING.values(), ids=PARTING)
def test_ranks_part(source: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, source)


@pytest.mark.parametrize("source", EQUAL.values(), ids=EQUAL)
def test_words_are_equal(source: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, source)


def test_told_at_the_call_under_the_branch(tmp_path: pathlib.Path) -> None:
    source = """
        from helpers import Brain

        class Quantizer(Brain):
            def fit(self, x):
                super().fit(x)

            def on_end(self, x, first):
                if first:
                    dist.barrier()
                else:
                    dist.barrier()
                if dist.get_rank() == 0:
                    dist.all_reduce(x)  # !rank-branch
    """
    helpers = """
        class Brain:
            def fit(self, x):
                self.on_end(x, dist.get_rank() == 0)
    """
    check(tmp_path, source, helpers=helpers)


def test_a_flag_is_what_the_class_itself_is_made_with(tmp_path: pathlib.Path) -> None:
    """And not another one of the same name."""
    source = """
        class Trainer:
            def __init__(self, saves=False):
                self.saves = saves

            def save(self):
                if self.saves:
                    dist.barrier()
    """
    made = "    Trainer(saves=dist.get_rank() == 0).save()\n"
    other = f"    class Trainer:\n        def __init__(self, saves): ...\n        def save(self): ...\n\n{made}"
    check(tmp_path, source, helpers=textwrap.dedent(other))
    found = "dist.barrier()  # !rank-branch"
    check(tmp_path, f"{textwrap.dedent(source)}\n\n{made.strip()}\n".replace("dist.barrier()", found))


def test_a_framework_is_no_project_with_a_class_of_the_same_name(tmp_path: pathlib.Path) -> None:
    for part in ("pytorch", "fabric"):
        folder = tmp_path / "src" / "lightning" / part / "strategies"
        folder.mkdir(parents=True)
        for package in (folder, folder.parent, folder.parent.parent):
            (package / "__init__.py").touch()
        (folder / "strategy.py").write_text("class Strategy:\n    def barrier(self): ...\n")
    source = """
        def f(trainer):
            if trainer.is_global_zero:
                trainer.strategy.barrier()  # !rank-branch
    """
    check(tmp_path, source)


def test_one_exit_is_one_mismatch(tmp_path: pathlib.Path) -> None:
    check(tmp_path, EXIT)
    (mismatch,) = [p for p in mismatches(tmp_path, EXIT) if p.confidence is not Confidence.LOW]
    assert mismatch.exit is not None
    assert mismatch.exit.line == mismatch.span.line - 1
    assert [label.message for label in mismatch.labels if "too" in label.message] == [
        "rank 0 misses model(x).sum().backward(), too"
    ]


def test_an_exit_is_shown_with_what_the_others_come_to_next(tmp_path: pathlib.Path) -> None:
    """The forward stands above the exit: the ranks that go on come to it in their next round, behind the reduction."""
    check(
        tmp_path,
        """
        from torch.distributed.fsdp import FullyShardedDataParallel

        def train(net, loader, losses):
            model = FullyShardedDataParallel(net)
            for batch in loader:
                loss = model(batch).sum()
                losses += loss.detach()
                if dist.get_rank() != 0:
                    return
                dist.all_reduce(losses)  # !rank-branch
        """,
    )


@pytest.mark.parametrize("asked", ["abcde", "edcba"])
def test_an_exit_after_many_shared_choices(asked: str, tmp_path: pathlib.Path) -> None:
    """The ways to it are too many to follow all of them: each outcome of each choice is on one that is followed."""
    before = "".join(f"            if args.{each}:\n                dist.barrier()\n" for each in "abcde")
    behind = "".join(f"            if args.{each}:\n                dist.all_reduce(x)\n" for each in asked)
    marked = behind.replace("(x)\n", "(x)  # !rank-branch\n", 1)
    leaving = "            if dist.get_rank() == 0 and args.done:\n                return\n"
    check(tmp_path, f"\n        def f(args, x):\n{before}{leaving}{marked}")


def test_a_loop_may_end_before_the_time_is_up(tmp_path: pathlib.Path) -> None:
    """One rank meets the deadline in its last round, another one does not; a loop without an end comes to it."""
    check(
        tmp_path,
        """
        def f(x, epochs, deadline):
            for _ in range(epochs):
                if time.time() > deadline:
                    dist.all_reduce(x)  # !data-condition
                    return

        def g(x, deadline):
            while True:
                if time.time() > deadline:
                    dist.all_reduce(x)
                    return
        """,
    )


def test_calls_of_one_kind_under_one_branch_are_one_mismatch_that_shows_them(tmp_path: pathlib.Path) -> None:
    source = """
        def f(x):
            if dist.get_rank() == 0:
                dist.barrier()  # !rank-branch
                dist.all_reduce(x)
                dist.all_reduce(x)
                dist.all_reduce(x)
                dist.all_reduce(x)
                dist.all_reduce(x)
    """
    check(tmp_path, source)
    (mismatch,) = mismatches(tmp_path, source)
    shown = [label.span.line for label in mismatch.labels if "too" in label.message]
    assert shown == [mismatch.span.line + n for n in (1, 2, 3)]
    assert mismatch.notes == ("2 more calls are skipped in the same way",)


def test_a_caller_of_the_function_with_the_branch_is_no_further_call(tmp_path: pathlib.Path) -> None:
    (mismatch,) = mismatches(
        tmp_path,
        """
        def evaluate(x):
            if dist.get_rank() == 0:
                dist.all_reduce(x)
                dist.barrier()

        if __name__ == "__main__":
            evaluate(torch.ones(1))
        """,
    )
    assert [label.message for label in mismatch.labels if "too" in label.message] == [
        "rank 1 misses dist.barrier(), too"
    ]


def test_two_calls_under_one_branch_are_two_mismatches(tmp_path: pathlib.Path) -> None:
    source = """
        def f(model, x):
            if dist.get_rank() == 0:
                dist.all_reduce(x)  # !rank-branch
                model = torch.nn.parallel.DistributedDataParallel(model)  # !implicit-collective
    """
    check(tmp_path, source)


SAVES_SHARDS = """
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP
    from torch.distributed.tensor import DTensor

    def is_sharded(model):
        if isinstance(model, (FSDP, FSDPModule)):
            return True
        return any(isinstance(p, DTensor) for p in model.parameters())

    def save(models, path):
        sharded = False
        if models:
            sharded = any(is_sharded(model) for model in models)
        if sharded:
            dist.barrier()
        for model in models:
            if is_sharded(model):
                state = get_model_state_dict(model)
            else:
                state = model.state_dict()
            torch.save(state, path)

    def load(models, path):
        if any(is_sharded(model) for model in models):
            receive(models)

    def receive(models):
        for model in models:
            dist.broadcast_object_list([model], src=0)
"""


def test_a_callee_that_communicates_for_sharded_models_alone(tmp_path: pathlib.Path) -> None:
    source = """
        from torch.{package} import {wrapper} as Wrapper
        from saving import load, save

        def train(net, path):
            model = Wrapper(net)
            if dist.get_rank() == 0:
                save([model], path){mark}

        def resume(net, path):
            model = Wrapper(net)
            for part in list(path)[dist.get_rank() :: dist.get_world_size()]:
                load([model], part){uneven}
    """
    ddp = source.format(package="nn.parallel", wrapper="DistributedDataParallel", mark="", uneven="")
    check(tmp_path, ddp, saving=SAVES_SHARDS)
    fsdp = source.format(
        package="distributed.fsdp", wrapper="FullyShardedDataParallel", mark="  # !implicit-collective",
        uneven="  # !loop-count",
    )  # fmt: skip
    check(tmp_path, fsdp, saving=SAVES_SHARDS)


@pytest.mark.parametrize(
    ("place", "text", "kind"),
    [
        ("lora.py", "accelerator = Accelerator()\nzero = accelerator.state.deepspeed_plugin\n", "implicit-collective"),
        ("lora.py", "accelerator = Accelerator()\n", ""),
        ("lora.py", "zero = state.deepspeed_plugin\n", ""),
        ("other/lora.py", "accelerator = Accelerator()\nzero = accelerator.state.deepspeed_plugin\n", ""),
        ("test_lora.py", "accelerator = Accelerator()\nzero = accelerator.state.deepspeed_plugin\n", ""),
    ],
)
def test_scripts_of_one_folder_are_launched_alike(place: str, text: str, kind: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(text)
    (tmp_path / "train.sh").write_text("accelerate launch --use_deepspeed $1\n")
    source = """
        from accelerate import Accelerator

        def main(step):
            accelerator = Accelerator()
            if accelerator.is_main_process:
                accelerator.save_state("checkpoint")  # !KIND
    """
    check(tmp_path, source.replace("# !KIND", f"# !{kind}" if kind else ""))


def test_callee_in_another_file(tmp_path: pathlib.Path) -> None:
    source = """
        from helpers import Saver, is_main
        saver = Saver()

        def f():
            if is_main():
                saver.save()  # !rank-branch
    """
    helpers = """
        def is_main():
            return not dist.is_initialized() or dist.get_rank() == 0

        class Saver:
            def save(self):
                self.wait()

            def wait(self):
                dist.barrier()
    """
    check(tmp_path, source, helpers=helpers)
    (mismatch,) = mismatches(tmp_path, source, helpers=helpers)
    assert [label.span.path for label in mismatch.labels].count("helpers.py") >= 2, "the chain into the callee"
    assert {trace.rank for trace in mismatch.witness} == {"rank 0", "rank 1"}
    assert "helpers.py" in {label.span.path for label in mismatch.labels if "differs between ranks" in label.message}


def test_a_model_that_is_handed_to_a_file_without_wraps(tmp_path: pathlib.Path) -> None:
    source = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from helpers import losses

        class Trainer:
            def __init__(self, model):
                self.model = FSDP(model)
                self.plain = model

            def log(self, batch):
                if dist.get_rank() == 0:
                    losses(self.model, batch)  # !one-rank-forward

            def log_of_one(self, net, batch):
                if dist.get_rank() == 0:
                    losses(net, batch)

            def log_of_all(self, batch):
                found = losses(self.model, batch)
                if dist.get_rank() == 0:
                    print(found)
    """
    helpers = """
        def losses(model, batch):
            with torch.no_grad():
                return [output(model, x) for x in (batch, batch + 1)]

        def output(model, x):
            return model(x)

        def alone(model, x):
            if dist.get_rank() == 0:
                model(x)
    """
    check(tmp_path, source, helpers=helpers)


STEPS = "".join(f"    step({number}, False)\n" for number in range(12))


def test_a_method_that_only_one_class_of_the_project_has(tmp_path: pathlib.Path) -> None:
    bridge = """
        class Bridge:
            def export_weights(self, models):
                for model in models:
                    dist.all_reduce(model)
                    yield model

            def gather_all(self, x):
                dist.all_reduce(x)

        class Other:
            def gather_all(self, x):
                return x
    """
    check(
        tmp_path,
        """
        def sync(trainer, models, x, rank):
            weights = trainer.make_bridge().export_weights(models)
            if rank == 0:
                for weight in weights:  # !rank-branch
                    print(weight)
                trainer.bridge.gather_all(x)
        """,
        bridge=bridge,
    )


@pytest.mark.parametrize(("given", "kind"), [("is_lead()", "  # !rank-branch"), ("True", ""), ("config.log", "")])
def test_a_flag_that_an_object_is_made_with(given: str, kind: str, tmp_path: pathlib.Path) -> None:
    check(
        tmp_path,
        f"""
        class Trainer:
            def __init__(self, log: bool):
                self.log = log

            def step(self, x):
                if self.log:
                    dist.all_reduce(x){kind}
        """,
        ranks="""
        __rank, __size = 0, 1

        def setup():
            global __rank, __size
            __rank, __size = dist.get_rank(), dist.get_world_size()
            print(is_lead())

        def is_lead():
            return __rank == 0
        """,
        main=f"""
        from program import Trainer
        from ranks import is_lead

        def main(config, x):
            log = {given}
            Trainer(log=log).step(x)
        """,
    )


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("self.register_buffer('mask', torch.ones(1))", "  # !one-rank-forward"),
        ("self.norms = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))", "  # !one-rank-forward"),
        ("self.scale = nn.Parameter(torch.ones(1))  # no register_buffer", ""),
        ("if not flash: self.register_buffer('mask', torch.ones(1))", ""),
    ],
)
def test_buffers_of_a_model_in_another_file(part: str, kind: str, tmp_path: pathlib.Path) -> None:
    check(
        tmp_path,
        f"""
        from torch.nn.parallel import DistributedDataParallel
        from model import Model

        def main(loader, rank, device):
            model = Model().to(device)
            model = DistributedDataParallel(model)
            if rank == 0:
                for x in loader:
                    model(x){kind}
        """,
        model="""
        from torch import nn
        from parts import Rotary

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.rotary = Rotary(flash=False)
        """,
        parts=f"""
        from torch import nn

        class Rotary(nn.Module):
            def __init__(self, flash):
                super().__init__()
                {part}
        """,
    )


def test_what_is_found_does_not_depend_on_the_files_before(tmp_path: pathlib.Path) -> None:
    """The arguments that are followed in a file are not those that another file has used up, nor more than those."""
    source = f"from helpers import step\n\ndef f():\n{STEPS}    step(12, dist.get_rank() == 0)\n"
    other = f"from helpers import step\n\ndef f():\n{STEPS}"
    helpers = "def step(number, flag):\n    if flag:\n        dist.barrier()\n"
    alone = mismatches(tmp_path, source, helpers=helpers, other=other)
    project = Project(tmp_path, tmp_path)
    found = [analyse(facts, project) for facts in map(project.modules.facts_of, sorted(tmp_path.glob("*.py"))) if facts]
    assert len(found) == 3 and found[-1] == alone


def test_a_test_is_no_caller_that_a_function_was_made_for(tmp_path: pathlib.Path) -> None:
    source = """
        def save(state, wait=True):
            if dist.get_rank() == 0 and wait:
                dist.barrier()  {mark}
    """
    calls = "from program import save\n\ndef {name}(state):\n    save(state, wait=False)\n"
    used = calls.format(name="finish")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    check(tmp_path / "one", source.format(mark="# !rank-branch"), test_saving=calls.format(name="test_saving"))
    check(tmp_path / "two", source.format(mark=""), test_saving=calls.format(name="test_saving"), used=used)


def test_a_function_has_arguments_of_its_own_followed(tmp_path: pathlib.Path) -> None:
    """However many the functions before it call the same helper with."""
    source = f"""
        def step(number, flag):
            if flag:
                dist.barrier()

        def first():
            {STEPS.replace("    ", "            ").strip()}

        def second():
            step(12, dist.get_rank() == 0)  # !rank-branch
    """
    check(tmp_path, source)


def test_flags_are_followed_however_often_a_function_is_called(tmp_path: pathlib.Path) -> None:
    """A log that can wait for all is called with another text each time; whether it waits is in the flag."""
    logs = "".join(f"            log('step {number}', {number})\n" for number in range(14))
    source = f"""
        def log(*texts, wait=True, **more):
            if wait:
                dist.barrier()
            print(*texts, **more)

        def evaluate(score):
{logs}
            if dist.get_rank() == 0:
                log("score", score, wait=False)
                log("better", score + 1, wait=False)
                log("best", score)  # !rank-branch
    """
    check(tmp_path, source)


def test_what_hangs_where_the_model_is_sharded_says_so_of_each_node(tmp_path: pathlib.Path) -> None:
    (mismatch,) = mismatches(
        tmp_path,
        """
        from transformers import Trainer, TrainingArguments

        def main(model, args: TrainingArguments):
            first = args.local_rank in [-1, 0]
            trainer = Trainer(model, args)
            trainer.train()
            if first:
                trainer.save_model(args.output_dir)
            args.distributed_state.wait_for_everyone()
        """,
    )
    assert mismatch.by_node and "it hangs under FSDP" in headline(mismatch)


def test_a_rank_that_breaks_out_of_a_loop_leaves(tmp_path: pathlib.Path) -> None:
    found = mismatches(
        tmp_path,
        """
        def train(model, batches):
            model = torch.nn.parallel.DistributedDataParallel(model)
            for batch in batches:
                loss = model(batch)
                if torch.isnan(loss):
                    break
                loss.backward()
        """,
    )
    assert any("leaves at line" in headline(mismatch) for mismatch in found)


def test_witness_says_what_each_rank_does(tmp_path: pathlib.Path) -> None:
    (mismatch,) = mismatches(tmp_path, PARTING["early return"])
    first, second = mismatch.witness
    assert (first.rank, second.rank) == ("rank 0", "rank 1")
    assert any("waits in dist.barrier()" in step.message for step in first.steps)
    assert any("without it" in step.message for step in second.steps)
    assert mismatch.branch is not None and mismatch.branch.line < mismatch.span.line


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "def f(files, x):\n    for file in files[dist.get_rank() :: 8]:\n        dist.all_reduce(x)\n",
            [
                ["runs one more iteration", "waits in dist.all_reduce()"],
                ["has left the loop", "reaches the end without it"],
            ],
        ),
        (
            "def f(loader, x):\n    for batch in loader:\n        if len(batch) == 0:\n            continue\n"
            "        dist.all_reduce(x)\n",
            [
                ["`len(batch) == 0` is False", "waits in dist.all_reduce()"],
                ["`len(batch) == 0` is True", "continues with the next iteration without it"],
            ],
        ),
        (
            "def f(count):\n    for i in range(count):\n        group = dist.new_group([i, i + 1])\n"
            "        if dist.get_rank() in (i, i + 1):\n            break\n",
            [
                ["`dist.get_rank() in (i, i + 1)` is False", "waits in dist.new_group()"],
                ["`dist.get_rank() in (i, i + 1)` is True", "reaches the end without it"],
            ],
        ),
    ],
    ids=["rounds", "continue", "break"],
)
def test_witness_of_a_loop(source: str, told: list[list[str]], tmp_path: pathlib.Path) -> None:
    (mismatch,) = mismatches(tmp_path, source)
    assert [[step.message for step in trace.steps[:2]] for trace in mismatch.witness] == told


def test_a_call_that_is_reported_is_not_told_again_where_the_program_starts(tmp_path: pathlib.Path) -> None:
    source = """
        def train(args):
            for step in range(args.steps):
                if args.local_rank in [-1, 0] and step % 5 == 0:
                    if args.local_rank == 0:
                        dist.barrier()  # !rank-branch

        def main(args):
            if args.local_rank not in [-1, 0]:
                dist.barrier()
            print("load")
            if args.local_rank == 0:
                dist.barrier()
            if args.do_train:
                train(args)

        if __name__ == "__main__":
            from settings import parse

            main(parse())
    """
    check(tmp_path, source)


@pytest.mark.parametrize(("leaving", "skips"), [("continue", True), ("return", False)])
def test_an_exit_from_the_round_alone_says_so(leaving: str, skips: bool, tmp_path: pathlib.Path) -> None:
    (mismatch,) = mismatches(
        tmp_path,
        f"""
        def f(loader: torch.utils.data.DataLoader, x):
            for batch in loader:
                if batch.sum().item() > 10:
                    {leaving}
                dist.all_reduce(x)
        """,
    )
    assert mismatch.exit is not None and mismatch.skips is skips


@pytest.mark.parametrize(
    "body",
    [
        "def f(n):\n    return f(n - 1) if n else dist.barrier()\n",
        "def f(n):\n    g(n)\ndef g(n):\n    f(n)\n    dist.barrier()\n",
        "".join(f"def f{i}():\n    f{i + 1}()\n    f{i + 1}()\n" for i in range(60))
        + "def f60():\n    dist.barrier()\n",
        "def f(x):\n"
        + "".join(f"{'    ' * i}for i{i} in x:\n" for i in range(1, 15))
        + "    " * 15
        + "dist.barrier()\n",
        "def f(x):\n" + "".join(f"    if x[{i}]:\n        dist.all_reduce(x)\n" for i in range(500)),
        "def f(x):\n    if x == 0:\n        pass\n"
        + "".join(f"    elif x == {i}:\n        dist.barrier()\n" for i in range(300)),
        "def f(x):\n" + "".join(f"    if dist.get_rank() == x[{i}]:\n        dist.barrier()\n" for i in range(60)),
    ],
    ids=["recursion", "mutual recursion", "doubling calls", "nested loops", "branches", "elif chain", "open ranks"],
)
def test_terminates(body: str, tmp_path: pathlib.Path) -> None:
    mismatches(tmp_path, body)


def test_a_function_beyond_the_bound_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddp_lint.divergence.event_graph import EventGraph

    monkeypatch.setattr(EventGraph, "BOUND", 3)
    path = tmp_path / "program.py"
    path.write_text(HEAD + textwrap.dedent(PARTING["rank branch"]))
    project = Project(tmp_path, tmp_path)
    facts = project.modules.facts_of(path)
    assert facts is not None
    result = result_of(facts, project)
    assert result.mismatches == () and [name for _, name in result.skipped] == ["f"]


@pytest.mark.parametrize("before", ["long(x)", "pass"])
def test_a_caller_beyond_the_bound_makes_up_for_nothing(
    before: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = ("# !rank-branch", "") if before == "long(x)" else ("", "# !rank-branch")
    source = f"""
        def prepare(x):
            if dist.get_rank() != 0:
                return
            dist.all_reduce(x)  {here}

        def run(x):
            {before}
            prepare(x)
            if dist.get_rank() != 0:
                dist.all_reduce(x)  {there}

        def long(x):
            pass; pass; pass; pass; pass; pass; pass; pass; pass; pass
    """
    monkeypatch.setattr("ddp_lint.divergence.summaries.Summaries.BOUND", 8)
    check(tmp_path, source)


def test_what_is_found_does_not_depend_on_how_deep_the_stack_is(tmp_path: pathlib.Path) -> None:
    """Ten calls within calls, each within six blocks: more than Python's own limit allows."""
    blocks = "".join(f"{'    ' * (depth + 1)}if flags[{depth}]:\n" for depth in range(6))
    step = "def f{0}(flags, x):\n" + blocks + "    " * 7 + "return f{1}(flags, ((x)))\n\n\n"
    source = "".join(step.format(number, number + 1) for number in range(10))
    source += "def f10(flags, x):\n    dist.all_reduce(x)\n\n\n"
    source += "def last(flags, x):\n    if dist.get_rank() == 0:\n        f0(flags, x)  # !rank-branch\n"

    def deeper(calls: int) -> None:
        check(tmp_path, source) if calls == 0 else deeper(calls - 1)

    check(tmp_path, source)
    deeper(700)


def test_a_witness_does_not_depend_on_the_hash_seed(tmp_path: pathlib.Path) -> None:
    """A call kept whole holds events of several streams: they are looked at in source order."""
    program = tmp_path / "program.py"
    program.write_text(
        HEAD
        + textwrap.dedent("""
        from torch.nn.parallel import DistributedDataParallel as DDP

        def train(config, model, batch):
            ddp = DDP(model)
            if dist.get_rank() == 0:
                dist.barrier()
            ddp(batch).sum().backward()
            dist.all_reduce(batch, group=dist.new_group([0, 1]))

        def main(config, model, batch):
            dist.init_process_group("nccl")
            try:
                if config.profile:
                    with torch.autograd.profiler.emit_nvtx():
                        train(config, model, batch)
                else:
                    train(config, model, batch)
            except Exception:
                if config.strict:
                    raise
            dist.barrier()
            DDP(model)(batch).sum().backward()
        """)
    )
    command = [sys.executable, "-m", "ddp_lint", "check", "--no-cache", "--isolated", "--select", "DDP101,DDP112"]
    shown = {
        subprocess.run(
            [*command, "--output-format", "json", str(program)],
            env=os.environ | {"PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=False,
        ).stdout
        for seed in (0, 2, 3)
    }  # fmt: skip
    assert len(shown) == 1
    assert {finding["code"] for finding in json.loads(shown.pop())["findings"]} == {"DDP101", "DDP112"}


def test_callers_see_into_a_large_function(tmp_path: pathlib.Path) -> None:
    """A difference that rests on the name of a parameter stands where a caller shows that nobody makes up for it."""
    many = "".join(f"            dist.all_reduce(losses[{n}])\n" for n in range(200))
    others = """
        import torch.multiprocessing as mp
        from program import train

        def worker(rank, size, losses):
            dist.init_process_group("nccl", rank=rank, world_size=size)
            train(losses, rank)

        def launch(losses):
            mp.spawn(worker, args=(2, losses), nprocs=2)
    """
    source = f"""
        def train(losses, rank=None):
            if rank == 0:
                dist.barrier()  # !rank-branch
{many}
    """
    check(tmp_path, source, launching=others)


@pytest.mark.parametrize(
    ("own", "mark"), [("class Timers:\n    def log(self, names): print(names)", ""), ("", "  # !implicit-collective")]
)
def test_a_fork_of_a_framework_has_classes_of_its_own(tmp_path: pathlib.Path, own: str, mark: str) -> None:
    """A class of the fork's in another module than the framework's is not the framework's."""
    source = f"""
        from megatron import get_timers

        def train():
            timers = get_timers()
            if dist.get_rank() == 0:
                timers.log(["forward"]){mark}
    """
    check(tmp_path, source, megatron=f"{own}\ndef get_timers(): return _TIMERS")


def test_a_loop_on_one_rank_in_a_try(tmp_path: pathlib.Path) -> None:
    """The test of the rank is at fault, although the exceptions that the `try` takes may skip the call as well."""
    source = """
        def run(x):
            try:
                for _ in range(2):
                    if dist.get_rank() == 0:
                        dist.barrier()
                    else:
                        x = torch.zeros(1)
            except (ValueError, OSError):
                pass
    """
    assert Kind.BRANCH in {found.kind for found in mismatches(tmp_path, source)}


def test_a_function_with_hundreds_of_groups_is_left_out(tmp_path: pathlib.Path) -> None:
    made = [f"    g{n} = dist.new_group([0, {n}])\n    dist.all_reduce(x, group=g{n})\n" for n in range(1, 250)]
    path = tmp_path / "m.py"
    path.write_text(HEAD + "def f(x):\n" + "".join(made))
    project = Project(tmp_path)
    facts = project.modules.facts_of(path)
    assert facts is not None and [name for _, name in result_of(facts, project).skipped] == ["f"]
