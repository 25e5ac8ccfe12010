"""What a rank's own data decide: how many batches it has, which keys, how many parts, which parts of a sharded model it
runs."""

import pathlib

import pytest
from test_mismatches import check

from ddp_lint.divergence import shards
from ddp_lint.knowledge.communication import load

PARTING = {
    "a set that grows in place": """
        def sync(model, frozen):
            names = {name for name, _ in model.named_parameters()}
            names |= set(frozen)
            params = dict(model.named_parameters())
            for name in names:
                dist.broadcast(params[name].data, src=0)  # !order
    """,
    "a dictionary with a key for each that the batches have": """
        from collections import defaultdict

        def evaluate(model, loader):
            hits, seen = defaultdict(float), {}
            for batch in loader:
                for name, guess in zip(batch["dataset"], model(batch["image"])):
                    hits[name] += float(guess)
            for name in sorted(hits):
                dist.all_reduce(torch.tensor(hits[name]))  # !loop-count
    """,
    "a dictionary that has a key once it was asked for one": """
        from collections import defaultdict

        def train(model, loader):
            losses = defaultdict(list)
            for batch in loader:
                losses[batch["source"]].append(model(batch).mean())
            for source, values in losses.items():
                dist.all_reduce(torch.stack(values).mean())  # !loop-count
    """,
    "a batch of which a collator has left nothing": """
        from torch.nn.parallel import DistributedDataParallel as DDP

        def main(net, loader, optimizer):
            model = DDP(net)
            for batch in loader:
                if batch is None:
                    continue
                model(batch).mean().backward()  # !optimizer-step
    """,
    "as many parts as the rank has": """
        def embed(model, items):
            mine = items[dist.get_rank()::dist.get_world_size()]
            features = torch.cat([model(item) for item in mine])
            gathered = [torch.empty_like(features) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, features)  # !argument
    """,
    "as many parts as a loop adds over the rank's own elements": """
        def embed(model, items):
            features = []
            for item in items[dist.get_rank()::dist.get_world_size()]:
                features.append(model(item))
            features = torch.cat(features)
            gathered = [torch.empty_like(features) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, features)  # !argument
    """,
    "the part of a stream that falls to a rank": """
        from datasets.distributed import split_dataset_by_node
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader

        def main(net, data):
            data = split_dataset_by_node(data, rank=dist.get_rank(), world_size=dist.get_world_size())
            loader = DataLoader(data.map(tokenize), batch_size=8)
            model = DDP(net)
            for batch in loader:
                model(batch).mean().backward()  # !loop-count
    """,
    "a shard of a data set": """
        def main(step, data):
            for item in data.shard(num_shards=dist.get_world_size(), index=dist.get_rank()):
                dist.all_reduce(step(item))  # !loop-count
    """,
    "shards of a web dataset": """
        import webdataset as wds
        from torch.nn.parallel import DistributedDataParallel as DDP

        def main(net, urls):
            data = wds.WebDataset(urls, nodesplitter=wds.split_by_node).shuffle(100).batched(8)
            model = DDP(net)
            for images, labels in wds.WebLoader(data, batch_size=None):
                model(images).mean().backward()  # !loop-count
    """,
    "a model that is sharded elsewhere, in a loop that ends with the rank's own batch": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def sample(model, ids, end):
            finished = torch.zeros(ids.size(0), dtype=torch.bool)
            for _ in range(256):
                token = model(ids)[:, -1].argmax(-1)  # !one-rank-forward
                finished |= token == end
                if finished.all():
                    break

        def main(net, loader, end):
            model = FSDP(net)
            for batch in loader:
                sample(model, batch["input_ids"], end)
    """,
    "a model that is sharded elsewhere, over the rank's own part of the data": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.utils.data import DataLoader

        def evaluate(model, data, rank, world):
            for batch in DataLoader(data[rank::world], batch_size=4):
                model(batch)  # !loop-count

        def main(net, data):
            evaluate(FSDP(net), data, dist.get_rank(), dist.get_world_size())
    """,
    "a state dictionary that is made whole": """
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        def save(model, path):
            if dist.get_rank() == 0:
                options = StateDictOptions(full_state_dict=True)
                torch.save(get_model_state_dict(model, options=options), path)  # !implicit-collective
    """,
    "metrics of an evaluator of ignite": """
        import ignite.distributed as idist
        from ignite.engine import create_supervised_evaluator

        def validate(model, metrics, loader):
            evaluator = create_supervised_evaluator(model, metrics=metrics)
            if idist.get_rank() == 0:
                evaluator.run(loader)  # !implicit-collective
    """,
}

EQUAL = {
    "a number that grows in place": """
        def f(flags, x):
            bits = 1
            bits |= flags
            for _ in range(bits):
                dist.all_reduce(x)
    """,
    "keys of what a model gives, and of a part of a batch": """
        from collections import defaultdict

        def evaluate(model, loader):
            totals = defaultdict(float)
            for batch in loader:
                for key, value in model(batch["image"]).items():
                    totals[key] += value.item()
                for key in batch:
                    totals[key] += 1
            for key in totals:
                dist.all_reduce(torch.tensor(totals[key]))
    """,
    "keys of all ranks": """
        from collections import defaultdict

        def evaluate(model, loader):
            hits = defaultdict(float)
            for batch in loader:
                for name, guess in zip(batch["dataset"], model(batch["image"])):
                    hits[name] += float(guess)
            keys = [None] * dist.get_world_size()
            dist.all_gather_object(keys, list(hits))
            for name in sorted({key for part in keys for key in part}):
                dist.all_reduce(torch.tensor(hits[name]))
    """,
    "a batch in the place of none": """
        from torch.nn.parallel import DistributedDataParallel as DDP

        def main(net, loader, other):
            model = DDP(net)
            for batch in loader:
                if batch is None:
                    batch = other
                model(batch).mean().backward()
    """,
    "parts that are filled up, or averaged": """
        import torch.nn.functional as F

        def embed(model, items):
            features = torch.cat([model(item) for item in items[dist.get_rank()::dist.get_world_size()]])
            size = torch.tensor([len(features)])
            dist.all_reduce(size, op=dist.ReduceOp.MAX)
            padded = F.pad(features, (0, 0, 0, int(size) - len(features)))
            gathered = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, padded)
            dist.all_reduce(features.mean())
    """,
    "a stream that repeats, or ends after as many on each rank": """
        import webdataset as wds
        from datasets.distributed import split_dataset_by_node
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader

        def main(net, data, urls):
            data = split_dataset_by_node(data, rank=dist.get_rank(), world_size=dist.get_world_size())
            model = DDP(net)
            for batch in DataLoader(data.take(1000), batch_size=8):
                model(batch).mean().backward()
            for batch in wds.WebDataset(urls, resampled=True, nodesplitter=wds.split_by_node):
                model(batch).mean().backward()
    """,
    "a loop that ends for all ranks": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def sample(model, ids, end):
            for step in range(256):
                token = model(ids)[:, -1].argmax(-1)
                done = (token == end).all().float()
                dist.all_reduce(done, op=dist.ReduceOp.MIN)
                if done.item():
                    break

        def main(net, loader, end):
            model = FSDP(net)
            for batch in loader:
                sample(model, batch["input_ids"], end)
    """,
}

MODELING = """
    import torch.nn as nn

    class Block(nn.Module):
        def forward(self, x):
            return x

    class Tower(nn.Module):
        def __init__(self, depth):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(depth))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    class Experts(nn.Module):
        def __init__(self, count):
            super().__init__()
            self.gate = nn.Linear(8, count)
            self.experts = nn.ModuleList([Block() for _ in range(count)])

        def forward(self, x):
            chosen = self.gate(x).argmax(-1)
            for i, expert in enumerate(self.experts):
                rows = torch.where(chosen == i)[0]
                {skipping}
                x[rows] = expert(x[rows])
            return x

    class Model(nn.Module):
        def __init__(self, other):
            super().__init__()
            self.vision = Tower(4)
            self.text = Tower(4)
            self.other = other

        def forward(self, tokens, pixel_values=None):
            {vision}
            return self.text(tokens)
"""
VISION = "if pixel_values is not None:\n                tokens = tokens + self.vision(pixel_values)"
SKIPPING = "if rows.numel() == 0:\n                    continue"
DUMMY = "tokens = tokens + self.vision(pixel_values if pixel_values is not None else tokens.new_zeros(1))"
IN_BOTH = f"{VISION}\n            else:\n                tokens = tokens + 0 * self.vision(tokens)"

BY_BLOCK = """
    from torch.distributed.fsdp import fully_shard

    def parallelize(model):
        for block in model.vision.blocks:
            fully_shard(block)
        for layer in model.layers:
            for expert in layer.moe.experts:
                fully_shard(expert)
        fully_shard(model)
"""
BY_NAME = """
    from torch.distributed.fsdp import fully_shard

    def parallelize(model):
        fully_shard(model.vision)
        experts = model.moe.experts
        for index, expert in enumerate(experts):
            fully_shard(expert)
"""
BY_CLASS = """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    def parallelize(model):
        return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block, Tower}))
"""
BY_TEST = """
    from torch.distributed.fsdp import fully_shard

    def parallelize(model):
        for module in model.modules():
            if isinstance(module, (Block, Tower)):
                fully_shard(module)
"""
BY_STAGE = """
    import deepspeed
    from program import Experts, Model

    CONFIG = {"zero_optimization": {"stage": 3}}

    def main(other):
        return deepspeed.initialize(model=Model(Experts(8)), config=CONFIG)
"""


@pytest.mark.parametrize("source", PARTING.values(), ids=PARTING)
def test_ranks_part(source: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, source)


@pytest.mark.parametrize("source", EQUAL.values(), ids=EQUAL)
def test_words_are_equal(source: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, source)


@pytest.mark.parametrize("sharding", [BY_BLOCK, BY_NAME, BY_CLASS, BY_TEST, BY_STAGE])
def test_parts_of_a_sharded_model_that_some_ranks_skip(sharding: str, tmp_path: pathlib.Path) -> None:
    """Although the file of the model uses no framework: another one shards its parts."""
    source = MODELING.format(vision=VISION, skipping=SKIPPING)
    source = source.replace("self.vision(pixel_values)", "self.vision(pixel_values)  # !one-rank-forward")
    source = source.replace("= expert(x[rows])", "= expert(x[rows])  # !one-rank-forward")
    check(tmp_path, source, sharding=sharding)


@pytest.mark.parametrize("vision", [DUMMY, IN_BOTH])
def test_parts_that_all_ranks_run(vision: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, MODELING.format(vision=vision, skipping="pass"), sharding=BY_BLOCK)


@pytest.mark.parametrize(
    "sharding",
    [
        "def parallelize(model): return torch.nn.parallel.DistributedDataParallel(model)",
        BY_STAGE.replace("3", "2"),
        BY_NAME.replace("model.vision", "model.text").replace("model.moe.experts", "model.layers"),
    ],
)
def test_parts_that_are_not_sharded(sharding: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, MODELING.format(vision=VISION, skipping=SKIPPING), sharding=sharding)


def test_flags_of_a_forward_are_the_same_on_all_ranks(tmp_path: pathlib.Path) -> None:
    source = MODELING.format(
        vision="if use_vision:\n                tokens = self.vision(tokens)",
        skipping="if self.skips and i:\n                    continue",
    )
    check(tmp_path, source.replace("pixel_values=None", "use_vision: bool"), sharding=BY_BLOCK)


def test_the_knowledge_has_the_forward_of_a_part() -> None:
    assert shards.FORWARD in load().collectives
