"""Programs as people write them: the loop in one file, what it goes through and what it trains made in another."""

import pathlib
import textwrap

import pytest
from test_mismatches import check

#: A script that divides data so that ranks have different numbers of them, in ways that say so in another place.
MAIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

from program import Engine, train


class Shards(IterableDataset):
    def __init__(self, files, rank, world_size):
        self.files, self.rank, self.world_size = files, rank, world_size

    def __iter__(self):
        for name in {files}:
            with open(name) as lines:
                for line in lines:
                    yield torch.tensor(float(line))


def main(files, opt):
    dist.init_process_group("nccl")
    model = DDP(torch.nn.Linear(1, 1).cuda())
    shards = Shards(files, dist.get_rank(), dist.get_world_size())
    loader = DataLoader(shards, batch_size=4)
    {calls}
"""
EVEN = MAIN.format(files="self.files", calls="{calls}").replace("IterableDataset", "Dataset, DistributedSampler")
EVEN = EVEN.replace("Shards(Dataset, DistributedSampler)", "Shards(Dataset)")
EVEN = EVEN.replace("batch_size=4", "batch_size=4, sampler=DistributedSampler(shards)")
OWN = "self.files[self.rank :: self.world_size]"

ENGINE = """
class Engine:
    def __init__(self, model, {loader}, opt):
        self.model, self.opt, self.limit = model, opt, 0.1
        self.{loader} = {loader}
        self.done = False

    def look(self, loss):
        if loss.item() < self.limit:
            self.done = True

    def fit(self):
        for x, y in self.{loader}:
            loss = torch.nn.functional.mse_loss(self.model(x), y)
            {backward}
            self.opt.step()
            self.look(loss)
            if self.done:
                break

def train(model, loader, opt):
    pass
"""


def case(text: str, **values: str) -> str:
    return textwrap.dedent(text).format(**values)


def test_a_loop_that_the_own_loss_ends_in_a_file_that_wraps_nothing(tmp_path: pathlib.Path) -> None:
    source = case(ENGINE, loader="loader", backward="loss.backward()  # !optimizer-step")
    check(tmp_path, source, main=EVEN.format(calls="Engine(model, loader, opt).fit()"))


def test_the_same_for_a_model_that_is_not_wrapped(tmp_path: pathlib.Path) -> None:
    source = case(ENGINE, loader="loader", backward="loss.backward()")
    check(tmp_path, source, main=EVEN.format(calls="Engine(torch.nn.Linear(1, 1), loader, opt).fit()"))


@pytest.mark.parametrize("skip", ["continue", "break", "return"])
def test_a_round_without_backward_in_a_function_that_is_given_the_wrapped_model(
    skip: str, tmp_path: pathlib.Path
) -> None:
    source = f"""
        import math

        class Engine:
            pass

        def train(model, loader, opt):
            for x in loader:
                loss = model(x).sum()
                if not math.isfinite(loss.item()):
                    {skip}
                loss.backward()  # !optimizer-step
                opt.step()
    """
    check(tmp_path, source, main=EVEN.format(calls="train(model, loader, opt)"))


def test_a_round_without_backward_that_all_ranks_agree_on(tmp_path: pathlib.Path) -> None:
    source = """
        import math

        class Engine:
            pass

        def train(model, loader, opt):
            for x in loader:
                loss = model(x).sum()
                bad = torch.tensor(float(not math.isfinite(loss.item())))
                dist.all_reduce(bad)
                if bad.item() > 0:
                    continue
                loss.backward()
                opt.step()
    """
    check(tmp_path, source, main=EVEN.format(calls="train(model, loader, opt)"))


UNEVEN = """
        import os
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader

        def make(data):
            return DataLoader(data, batch_size=4)

        def train(model, loader, opt):
            for x in loader:
                loss = model(x).sum()
                loss.backward()
                opt.step()

        def main(data, opt):
            data = data[{part}]
            model = DDP(torch.nn.Linear(1, 1).cuda())
            for epoch in range(3):
                train(model, make(data), opt){mark}
"""


def test_a_loader_that_a_function_is_given_ends_on_the_account_of_its_caller(tmp_path: pathlib.Path) -> None:
    check(tmp_path, UNEVEN.format(part="dist.get_rank() :: dist.get_world_size()", mark="  # !loop-count"))


@pytest.mark.parametrize("part", [": 10 * dist.get_world_size()", "dist.get_rank() * 10 : dist.get_rank() * 10 + 10"])
def test_a_loader_that_has_as_many_batches_on_all_ranks(part: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, UNEVEN.format(part=part, mark=""))


def test_a_loader_that_is_made_of_variables_where_the_object_is_made(tmp_path: pathlib.Path) -> None:
    source = """
        class Engine:
            def __init__(self, model, loader, opt):
                self.model, self.loader, self.opt = model, loader, opt

            def fit(self):
                for x in self.loader:
                    loss = self.model(x).sum()
                    loss.backward()  # !loop-count
                    self.opt.step()

        def train(model, loader, opt):
            pass
    """
    check(tmp_path, source, main=MAIN.format(files=OWN, calls="Engine(model, loader, opt).fit()"))


@pytest.mark.parametrize("test", ["loss.isnan()", "torch.isnan(loss)", "not loss.isfinite()"])
def test_an_accelerator_that_another_file_makes(test: str, tmp_path: pathlib.Path) -> None:
    source = f"""
        class Loop:
            def __init__(self, accelerator, model, dl, opt):
                self.accelerator, self.model, self.opt = accelerator, model, opt
                self.dl = dl

            def run(self):
                for batch in self.dl:
                    loss = self.model(batch).sum()
                    if {test}:
                        continue
                    self.accelerator.backward(loss)  # !optimizer-step
                    self.opt.step()

            def run_together(self):
                for batch in self.dl:
                    loss = self.model(batch).sum()
                    if self.accelerator.gather(loss[None].isnan()).any():
                        continue
                    self.accelerator.backward(loss)
                    self.opt.step()
    """
    main = """
        from accelerate import Accelerator
        from program import Loop

        def main(model, dl, opt):
            accelerator = Accelerator()
            model, dl, opt = accelerator.prepare(model, dl, opt)
            Loop(accelerator, model, dl, opt).run()
    """
    check(tmp_path, source, main=textwrap.dedent(main))


def test_a_share_that_is_cut_to_what_all_ranks_have(tmp_path: pathlib.Path) -> None:
    source = """
        def of_the_shortest(files, x):
            mine = files[dist.get_rank() :: dist.get_world_size()]
            n = torch.tensor(len(mine))
            dist.all_reduce(n, op=dist.ReduceOp.MIN)
            for f in mine[: int(n.item())]:
                dist.all_reduce(x)

        def of_all(files, x):
            mine = files[dist.get_rank() :: dist.get_world_size()]
            each = len(files) // dist.get_world_size()
            mine = mine[:each]
            for f in mine:
                dist.all_reduce(x)

        def numbers(data, x):
            index = list(range(dist.get_rank(), len(data), dist.get_world_size()))
            index = index[: len(data) // dist.get_world_size()]
            for i in index:
                dist.all_reduce(x)

        def at_most(files, x, most):
            mine = files[dist.get_rank() :: dist.get_world_size()]
            for f in mine[:most]:
                dist.all_reduce(x)  # !loop-count

        def without_the_first(files, x):
            mine = files[dist.get_rank() :: dist.get_world_size()]
            for f in mine[1:]:
                dist.all_reduce(x)  # !loop-count

        def rounded_up(files, x):
            size = dist.get_world_size()
            mine = files[dist.get_rank() :: size]
            for f in mine[: (len(files) + size - 1) // size]:
                dist.all_reduce(x)  # !loop-count
    """
    check(tmp_path, source)


def test_the_number_of_batches_of_a_share(tmp_path: pathlib.Path) -> None:
    source = """
        from torch.utils.data import DataLoader, DistributedSampler

        def run(items, x):
            loader = DataLoader(items[dist.get_rank() :: dist.get_world_size()], 4)
            steps = len(loader)
            batches = iter(loader)
            for i in range(steps):
                next(batches)
                dist.all_reduce(x)  # !loop-count

        def of_all(items, x):
            loader = DataLoader(items, 4, shuffle=True)
            for i in range(len(loader)):
                dist.all_reduce(x)

        def cut(items, x):
            each = len(items) // dist.get_world_size()
            loader = DataLoader(items[dist.get_rank() :: dist.get_world_size()][:each], 4)
            for i in range(len(loader)):
                dist.all_reduce(x)
    """
    check(tmp_path, source)


def test_an_object_that_a_method_of_its_class_makes(tmp_path: pathlib.Path) -> None:
    source = """
        from dataclasses import dataclass

        @dataclass
        class Mesh:
            stage: int
            stages: int

            @classmethod
            def create(cls, stages):
                made = cls(stage=dist.get_rank(), stages=stages)
                if made.is_first:
                    dist.new_group([0])  # !new-group
                return made

            @classmethod
            def of_settings(cls, settings):
                made = cls(settings.stage, stages=dist.get_world_size())
                if made.stages > 1 or made.is_first:
                    dist.barrier()
                return made

            @property
            def is_first(self):
                return self.stage == 0

            def __call__(self, stage, stages):
                return Mesh(0, stages)

            def again(self, x):
                if self(dist.get_rank(), 2).is_first:
                    dist.all_reduce(x)
    """
    check(tmp_path, source)


def test_a_list_of_the_own_share_that_another_function_makes_a_tensor_of(tmp_path: pathlib.Path) -> None:
    source = """
        def reduce(losses):
            t = torch.tensor(losses)
            dist.all_reduce(t)
            return t.sum().item()

        def mean(losses):
            t = torch.tensor([sum(losses), float(len(losses))])
            dist.all_reduce(t)
            return t[0] / t[1]

        def grown(items):
            losses = []
            for x in items[dist.get_rank() :: dist.get_world_size()]:
                losses.append(float(x.sum()))
            mean(losses)
            return reduce(losses)  # !argument

        def listed(items):
            losses = [float(x.sum()) for x in items[dist.get_rank() :: dist.get_world_size()]]
            t = torch.tensor(losses)
            dist.all_reduce(t)  # !argument

        def of_all(items):
            losses = [float(x.sum()) for x in items]
            return reduce(losses)
    """
    check(tmp_path, source)


#: What both helpers of `comm` communicate over where nothing is given to them: all ranks.
COMM = """
    def get_default_group():
        return dist.group.WORLD

    def reduce(x, group=None):
        if group is None:
            group = get_default_group()
        dist.all_reduce(x, group=group)

    def total(x, group=None):
        group = group if group is not None else dist.group.WORLD
        dist.all_reduce(x, group=group)
"""


def test_a_helper_that_is_given_no_group_takes_all_ranks(tmp_path: pathlib.Path) -> None:
    source = """
        from comm import reduce, total

        def metrics(x, tp_group):
            pair = dist.new_group([0, 1])
            if dist.get_rank() in (0, 1):
                reduce(x, pair)
                total(x, group=pair)
            reduce(x, tp_group)
            if dist.get_rank() == 0:
                reduce(x)  # !rank-branch
            if dist.get_rank() == 1:
                total(x)  # !rank-branch
    """
    check(tmp_path, source, comm=COMM)


def test_an_entry_that_is_called_the_local_rank(tmp_path: pathlib.Path) -> None:
    source = """
        from context import context

        def gather(x):
            if context["world_size"] > 1:
                dist.all_reduce(x)

        def save(x, config):
            if context["local_rank"] == -1 or context["local_rank"] == 0:
                gather(x)  # !rank-branch
            if config["rank"] == 0:  # of an adapter, perhaps
                dist.barrier()
            known = {"local_rank": 0}
            if known["local_rank"] == 0:
                dist.barrier()
            context["global_rank"] = 0
            if context["global_rank"] == 0:
                dist.barrier()
    """
    check(tmp_path, source, context="context = {}\n")
