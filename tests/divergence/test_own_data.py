"""What a rank's own data decide: how many batches it has, which keys, how many parts, which parts of a sharded model it
runs."""

import pathlib

import pytest
from test_mismatches import check

PARTING = {
    "rounds by the rank of loops that come to one call may add up, and those of one loop do not": """
        def step(x):
            dist.all_reduce(x)

        def phases(x, count):
            warmup = min(dist.get_world_size() - dist.get_rank(), count)
            for _ in range(warmup):
                step(x)  # ?loop-count
            for _ in range(count - warmup):
                step(x)  # ?loop-count

        def one_phase(x, count):
            warmup = min(dist.get_world_size() - dist.get_rank(), count)
            for _ in range(warmup):
                step(x)  # !loop-count
            for _ in range(count):
                step(x)

        def two_calls(x, y):
            for _ in range(dist.get_rank()):
                step(x)  # !loop-count
            for _ in range(dist.get_rank()):
                dist.broadcast(y, 0)  # !loop-count
    """,
    "what a generator takes from the loader": """
        def proposed(choices, loader):
            while True:
                for choice in loader:
                    yield choice

        def search(model, choices, loader, rounds):
            proposed_iter = proposed(choices, loader)
            for _ in range(rounds):
                choice = next(proposed_iter)
                if choice.shape[1] >= 10:
                    dist.all_reduce(model(choice))  # !data-condition
    """,
    "the length of a batch of the rank's own": """
        def train(model, loader):
            for batch in loader:
                if batch.shape[1] >= 10:
                    dist.all_reduce(model(batch))  # !data-condition
    """,
    "how many elements one batch has, a mask selects of all of them, or all of them have in the end": """
        def evaluate(model, loader, limit, x):
            seen, found, some = 0, 0, 0
            for batch in loader:
                labels = batch[1].to(x.device)
                if labels.numel():
                    dist.all_reduce(x)  # !data-condition
                found += (labels > 0).sum().item()
                some += labels[labels > 0].numel()
                seen += labels.numel()
            if found:
                dist.all_reduce(x)  # !data-condition
            if some > 0:
                dist.broadcast(x, 0)  # !data-condition
            if seen > limit:
                dist.barrier()  # !data-condition

        def of_one_batch(batch, x):
            seen = 0
            for target in batch:
                seen += target["x"].numel()
            if seen:
                dist.all_reduce(x)  # !data-condition
    """,
    "a stream that hands on one that ends with the data of a rank": """
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader, IterableDataset

        class Lines(IterableDataset):
            def __init__(self, lines, repeat=True):
                self.lines, self.repeat = lines, repeat

            def __iter__(self):
                mine = self.lines[dist.get_rank()::dist.get_world_size()]
                yield from mine

        class Mapped(IterableDataset):
            def __init__(self, source, function):
                self.source = source
                self.function = function

            def __iter__(self):
                return self.function(iter(self.source))

        def make(lines, decode, shuffle):
            dataset = Lines(lines)
            dataset = Mapped(dataset, decode)
            return Mapped(dataset, shuffle)

        def main(net, lines, decode, shuffle, steps):
            model = DDP(net)
            for number, batch in enumerate(DataLoader(make(lines, decode, shuffle), batch_size=4)):
                model(batch).mean().backward()  # !loop-count
                if number + 1 == steps:
                    break
    """,
    "parameters for images beside text, whose mode a caller chooses": """
        class Beside(nn.Module):
            def forward(self, tokens=None, images=None):
                if images is not None:
                    return self.teacher(tokens, images)
                if tokens is None:
                    raise ValueError("tokens")
                x = self.student(tokens)
                dist.all_reduce(x)  # ?data-condition
                return x

        class Used(nn.Module):
            def forward(self, tokens=None, images=None):
                if images is None:
                    return self.text(tokens)
                x = self.vision(images)
                dist.all_reduce(x)  # ?data-condition
                return x

        class Free(nn.Module):
            def forward(self, tokens=None, images=None):
                if images is not None:
                    return self.vision(images)
                x = self.text(tokens)
                dist.all_reduce(x)  # ?data-condition
                return x
    """,
    "images that a rank's samples have beside the text, or lack": """
        def train(model, loader, x):
            for batch in loader:
                images, tokens = prepare(batch)
                if images is not None:
                    dist.all_reduce(x)  # !data-condition

        def field(model, loader, x):
            for batch in loader:
                if batch.get("images") is None:
                    continue
                dist.all_reduce(x)  # !data-condition
    """,
    "dictionaries of what was made of a batch, and whether a batch says yes": """
        def reduce(values, x):
            if not values:
                return values
            dist.all_reduce(x)
            return {name: value / 2 for name, value in values.items()}

        def train(model, loader, x):
            for batch in loader:
                losses, found = model(batch)
                if losses:
                    dist.all_reduce(x)  # ?data-condition
                log(**losses)
                if is_bad(found):
                    continue
                dist.barrier()  # !data-condition

        def evaluate(model, loader, x):
            for batch in loader:
                losses, found = model(batch)
                reduce(losses, x)  # ?data-condition
    """,
    "a number that has come the shortest way from the batch": """
        def last(mask, x):
            if mask.sum() > 3:
                dist.all_reduce(x)

        def near(loader, x):
            for batch in loader:
                last(batch["mask"], x)  # !data-condition
    """,
    "a number that has come a long way from the batch": """
        def last(mask, x):
            if mask.sum() > 3:
                dist.all_reduce(x)

        def middle(mask, x):
            last(mask, x)

        def first(mask, x):
            middle(mask, x)

        def far(loader, x):
            for batch in loader:
                first(batch["mask"], x)  # ?data-condition
    """,
    "what a communicator of MPI gives one rank": """
        from torch.nn.parallel import DistributedDataParallel as DDP

        def mean(x, comm):
            x = x / comm.size
            comm.Reduce(MPI.IN_PLACE, x, MPI.SUM)
            return x

        def train(net, loader, optimizer, scheduler, comm):
            model, total = DDP(net), 0.0
            for batch in loader:
                loss = model(batch).mean()
                loss.backward()
                optimizer.step()
                total += loss.item()
            total = mean(torch.tensor(total), comm)
            if total > 1.0:
                dist.barrier()  # !data-condition
    """,
    "a list that one arm alone makes longer": """
        def main(mask, count, longest):
            masks = []
            for i in range(count):
                if i == dist.get_rank():
                    masks.append(torch.zeros(longest))
            dist.all_reduce(torch.stack(masks))  # !argument
    """,
    "gradients of what a function is given": """
        def norm(parameters):
            grads = [p.grad for p in parameters if p.grad is not None]
            if len(grads) > 0:
                total = torch.nn.utils.get_total_norm(grads)
                dist.all_reduce(total)  # ?data-condition
            return 0.0

        def norm_of_experts(parameters, ep_group):
            grads = [p.grad for p in parameters if p.grad is not None]
            if len(grads) > 0:
                total = torch.nn.utils.get_total_norm(grads)
                dist.all_reduce(total, group=ep_group)  # !data-condition
            return 0.0
    """,
    "a meter of own losses": """
        import numpy as np
        from timm.utils import AverageMeter

        def validate(model, loader):
            losses = AverageMeter()
            for batch in loader:
                losses.update(model(batch).item(), batch.size(0))
            return {"loss": losses.avg}

        def train(model, loader, x):
            for epoch in range(10):
                metrics = validate(model, loader)
                if not np.isfinite(metrics["loss"]):
                    return
                dist.all_reduce(x)  # !data-condition
    """,
    "the number of tokens of a batch": """
        def main(model, loader, x):
            for batch in loader:
                length = batch.shape[1]
                for i in range(length):
                    dist.all_reduce(x)  # ?loop-count
    """,
    "a rank's own share, gone through in each epoch, and again with a barrier behind it": """
        def train(share, loss, most):
            for epoch in range(10):
                for x in share[dist.get_rank()::dist.get_world_size()]:
                    dist.all_reduce(loss)  # !loop-count

        def with_barriers(share, loss, most):
            steps = 0
            while steps < most:
                for x in share[dist.get_rank()::dist.get_world_size()]:
                    dist.all_reduce(loss)  # !loop-count
                    steps += 1
                dist.barrier()
    """,
    "batches that a training loop gives by keyword": """
        from accelerate import Accelerator

        def train(model, optimizer, train):
            accelerator = Accelerator()
            model, optimizer, train = accelerator.prepare(model, optimizer, train)
            total = 0
            for batch in train:
                loss = model(**batch).loss
                accelerator.backward(loss)  # !optimizer-step
                optimizer.step()
                total += loss.item()
                if total > 50:
                    break
    """,
    "a sampler that goes through the rank's share, batches by length": """
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, Sampler

        class Batches(Sampler):
            def __init__(self, lengths, limit, rank, world):
                self.lengths, self.limit, self.rank, self.world = lengths, limit, rank, world

            def __len__(self):
                return len(self.lengths) // self.world

            def __iter__(self):
                batch, total = [], 0
                for place in range(self.rank, len(self.lengths), self.world):
                    if total + self.lengths[place] > self.limit:
                        yield batch
                        batch, total = [], 0
                    batch.append(place)
                    total += self.lengths[place]
                if batch:
                    yield batch

        def train(model, data, optimizer):
            model = DistributedDataParallel(model)
            sampler = Batches(data.lengths, 4096, dist.get_rank(), dist.get_world_size())
            for batch in DataLoader(data, batch_sampler=sampler):
                model(batch).backward()  # !loop-count
                optimizer.step()
    """,
    "a sampler that returns an iterator of the rank's share; an object that is gone through itself": """
        from torch.utils.data import DataLoader

        class Places:
            def __init__(self, data):
                self.data = data

            def __iter__(self):
                return iter(list(range(len(self.data)))[dist.get_rank() :: dist.get_world_size()])

        class Files:
            def __init__(self, paths):
                self.paths = paths

            def __iter__(self):
                for path in self.paths[dist.get_rank() :: dist.get_world_size()]:
                    yield open(path).read()

        class Passed(Places):
            def __iter__(self):
                try:
                    yield from self.own()
                finally:
                    self.data.close()

            def own(self):
                for place in range(dist.get_rank(), len(self.data), dist.get_world_size()):
                    yield place

        def by_sampler(model, data):
            for batch in DataLoader(data, sampler=Places(data)):
                dist.all_reduce(model(batch))  # !loop-count

        def by_helper(model, data):
            for batch in DataLoader(data, sampler=Passed(data)):
                dist.all_reduce(model(batch))  # !loop-count

        def directly(model, paths):
            for text in Files(paths):  # what follows is within the loop of the generator
                dist.all_reduce(model(text))  # !loop-count
    """,
    "what a rank's own batches decide, in the fields of data classes and named tuples": """
        import dataclasses
        from typing import NamedTuple

        @dataclasses.dataclass
        class Result:
            count: int
            right: float = 0.0

        class Pair(NamedTuple):
            right: float
            count: int

        def evaluate(model, val_loader):
            total = 0.0
            for x, y in val_loader:
                total += (model(x) == y).sum().item()
            return Result(10, right=total), Pair(total, 10)

        def train(model, val_loader, x):
            result, pair = evaluate(model, val_loader)
            if result.count > 5 or pair.count > 5:
                dist.all_reduce(x)
            if result.right > 0.5:
                dist.all_reduce(x)  # ?data-condition
            if pair.right > 0.5:
                dist.all_reduce(x)  # ?data-condition
    """,
    "what a rank's own batches decide, in the entries of a dictionary": """
        def evaluate(model, val_loader):
            total = 0.0
            for x, y in val_loader:
                total += (model(x) == y).sum().item()
            return {"right": total}

        def patience(model, val_loader, x):
            best = {"right": 0.0, "epoch": 0}
            for epoch in range(10):
                dist.all_reduce(x)  # ?loop-count
                right = evaluate(model, val_loader)["right"]
                if right > best["right"]:
                    best["right"] = right
                    best["epoch"] = epoch
                if epoch - best["epoch"] > 3:
                    break

        def updated(model, val_loader, x):
            metrics = {"epoch": 1}
            metrics.update(evaluate(model, val_loader))
            if metrics["epoch"] > 0:
                dist.all_reduce(x)
            if metrics["right"] > 10:
                dist.all_reduce(x)  # ?data-condition
    """,
    "a dataset that holds the rank's share": """
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, Dataset

        class Part(Dataset):
            def __init__(self, items):
                self.items = items[dist.get_rank() :: dist.get_world_size()]

            def __len__(self):
                return len(self.items)

            def __getitem__(self, place):
                return self.items[place]

        def train(model, items, optimizer):
            model = DistributedDataParallel(model)
            for batch in DataLoader(Part(items), batch_size=4, shuffle=True):
                model(batch).backward()  # !loop-count
                optimizer.step()
    """,
    "a loader of files that fall to the rank, given to the object that trains": """
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, Dataset

        class Shards(Dataset):
            def __init__(self, files):
                self.items = []
                for file in files[dist.get_rank() :: dist.get_world_size()]:
                    self.items.extend(torch.load(file))

            def __len__(self):
                return len(self.items)

        def build(files):
            return DataLoader(Shards(files), batch_size=4)

        class Trainer:
            def __init__(self, model, loader):
                self.model = DistributedDataParallel(model)
                self.loader = loader

            def train(self, optimizer):
                for batch in self.loader:
                    self.model(batch).backward()  # !loop-count
                    optimizer.step()

        def main(model, files, optimizer):
            Trainer(model, build(files)).train(optimizer)
    """,
    "a call that two unlike causes skip": """
        from torch.nn.parallel import DistributedDataParallel

        class Trainer:
            def __init__(self, model, loader, optimizer):
                self.model = DistributedDataParallel(model)
                self.loader, self.optimizer = loader, optimizer

            def train(self, epochs, hours):
                start = time.time()
                for _ in range(epochs):
                    self.once()  # !optimizer-step
                    if time.time() - start > hours * 3600:
                        break

            def once(self):
                for batch in self.loader:
                    loss = self.model(batch)
                    if torch.isnan(loss):
                        continue
                    loss.backward()  # !optimizer-step
                    self.optimizer.step()
    """,
    "a file that rank 0 writes through open": """
        import pickle

        def cached(path, names):
            if not os.path.exists(path):
                if dist.get_rank() == 0:
                    with open(path, "wb") as file:
                        pickle.dump(names, file)
                dist.barrier()  # !data-condition
            with open(path, "rb") as file:
                return pickle.load(file)
    """,
    "the bytes of objects": """
        import pickle

        def gather(results):
            data = pickle.dumps(results)
            mine = torch.ByteTensor(torch.ByteStorage.from_buffer(data)).cuda()
            all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(all_of_them, mine)  # !argument
    """,
    "a rank's share, and one element more on some ranks": """
        def decode(data, world_size, more):
            rank = dist.get_rank()
            mine, number = [], 0
            for item in data:
                if number % world_size == rank:
                    mine.append(item)
                number += 1
            if rank >= more:
                mine.append({})
            for item in mine:
                dist.barrier()  # !loop-count
    """,
    "the bytes of objects, in a helper that has packed keys before": """
        import pickle

        def packed(held):
            return torch.ByteTensor(torch.ByteStorage.from_buffer(pickle.dumps(held))).cuda()

        def of_keys(states):
            dist.broadcast(packed(list(states.keys())), src=0)

        def of_results(results):
            dist.broadcast(packed(results), src=0)  # !argument
    """,
    "buffers of a model that was made by a rank's own batch": """
        from quantization import prepare

        def synchronise(loader, model):
            prepared = prepare(model, next(iter(loader)))
            for name, buffer in prepared.named_buffers():
                if buffer.sum() > 0:
                    dist.all_reduce(buffer)  # !data-condition
    """,
    "a data set that takes a rank's share": """
        from torch.utils.data import DataLoader, Dataset

        class Share(Dataset):
            def __init__(self, items):
                self.items = items[dist.get_rank()::dist.get_world_size()]

            def __len__(self):
                return len(self.items)

        def main(items, model):
            for batch in DataLoader(Share(items), batch_size=4):
                dist.all_reduce(model(batch))  # !loop-count
    """,
    "numbers that are drawn from a seed of the rank's own": """
        import random

        def main(model, loader, seed, share):
            seed = seed + dist.get_rank()
            random.seed(seed)
            for batch in loader:
                if random.random() < share:
                    dist.all_reduce(model(batch))  # !data-condition
    """,
    "what a training loop goes through, whatever it is called": """
        def train(net, dl, optimizer):
            model = torch.nn.parallel.DistributedDataParallel(net)
            for step, batch in enumerate(dl):
                if (batch["labels"] != -100).sum() == 0:
                    continue
                model(batch).backward()  # !optimizer-step
                optimizer.step()
    """,
    "batches that a collator has emptied": """
        from tqdm import tqdm

        def train(net, train_data, optimizer):
            model = torch.nn.parallel.DistributedDataParallel(net)
            bar = tqdm(train_data)
            for batch in bar:
                if batch is None:
                    continue
                model(batch).backward()  # !optimizer-step
                optimizer.step()
    """,
    "a meter that reduces its count alone": """
        class Meter:
            def __init__(self):
                self.sum, self.count, self.avg = 0, 0, 0

            def update(self, value):
                self.sum += value
                self.count += 1
                self.avg = self.sum / self.count

            def all_reduce(self):
                count = torch.tensor(self.count)
                dist.all_reduce(count)
                self.count = count.item()

        def main(model, loader):
            meter = Meter()
            for batch in loader:
                meter.update(model(batch).item())
            meter.all_reduce()
            if meter.avg > 0.5:
                dist.barrier()  # !data-condition
    """,
    "sequences of the rank's own that are longer than those before": """
        def main(loader, longest):
            for batch in loader:
                if batch.shape[1] > longest:
                    longest = batch.shape[1]
                    dist.barrier()  # !data-condition
    """,
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
    "parts that a function is told a number for that the ranks have not agreed on": """
        def scaled(tensor, size):
            return tensor.contiguous()

        def embed(model, items):
            features = torch.cat([model(item) for item in items[dist.get_rank()::dist.get_world_size()]])
            features = scaled(features, 8)
            gathered = torch.empty(dist.get_world_size(), *features.shape)
            dist.all_gather_into_tensor(gathered, features)  # !argument
    """,
    "a tensor of a list of the rank's own elements": """
        def score(model, data):
            scores = []
            for i in range(dist.get_rank(), len(data), dist.get_world_size()):
                scores.append(model(data[i]).item())
            mine = torch.tensor(scores)
            every = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(every, mine)  # !argument
    """,
    "an entry that a loop over the rank's own elements adds to": """
        def score(model, items):
            results = {"scores": [], "ids": []}
            for item in items[dist.get_rank()::dist.get_world_size()]:
                results["scores"].append(model(item))
            mine = torch.cat(results["scores"])
            every = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(every, mine)  # !argument
    """,
    "a number of boxes in the rank's own samples": """
        def count(outputs, targets):
            boxes = sum(len(target["labels"]) for target in targets)
            if boxes == 0:
                return outputs.sum() * 0
            boxes = torch.as_tensor([boxes])
            dist.all_reduce(boxes)  # !data-condition
            return outputs.sum() / boxes
    """,
    "a model that is given the fields of a batch by name": """
        from accelerate import Accelerator

        def train(model, optimizer, loader):
            accelerator = Accelerator()
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            for batch in loader:
                loss = model(**batch).loss
                if loss.item() > 10:
                    continue
                accelerator.backward(loss)  # !optimizer-step
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
    "an attribute with a key for each that the batches have": """
        from collections import defaultdict

        class Evaluator:
            def __init__(self):
                self.hits = defaultdict(list)

            def update(self, batch, guesses):
                for i, (task, guess) in enumerate(zip(batch["task"], guesses)):
                    self.hits[task].append(float(guess))

            def summarise(self):
                for task, values in self.hits.items():
                    dist.all_reduce(torch.tensor(sum(values)))  # ?loop-count
    """,
    "a list of the batches that are hard": """
        def train(model, loader):
            hard = []
            for batch in loader:
                if batch["score"].mean() > 0.5:
                    hard.append(batch)
            for batch in hard:
                dist.all_reduce(batch["x"])  # !loop-count
    """,
    "batches that a test selects": """
        from torch.nn.parallel import DistributedDataParallel as DDP

        def train(net, loader):
            model = DDP(net)
            for batch in [b for b in loader if b["score"].mean() > 0.5]:
                model(batch).sum().backward()  # !optimizer-step
    """,
    "a loader of this rank's part beside one with a sampler": """
        from torch.utils.data import DataLoader, DistributedSampler, Subset

        def evaluate(model, data, x):
            part = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
            for batch in DataLoader(part, batch_size=4):
                dist.all_reduce(x)  # !loop-count

        def train(data):
            return DataLoader(data, sampler=DistributedSampler(data))
    """,
    "metrics of an evaluator of ignite": """
        import ignite.distributed as idist
        from ignite.engine import create_supervised_evaluator

        def validate(model, metrics, loader):
            evaluator = create_supervised_evaluator(model, metrics=metrics)
            if idist.get_rank() == 0:
                evaluator.run(loader)  # !implicit-collective
    """,
    "a rank's own share, asked for one element at a time": """
        import contextlib

        def train(share, loss):
            files = iter(share[dist.get_rank()::dist.get_world_size()])
            while True:
                try:
                    file = next(files)
                except StopIteration:
                    break
                dist.all_reduce(loss(file))  # !loop-count

        def until_done(share, loss):
            files = iter(share[dist.get_rank()::dist.get_world_size()])
            done = False
            while not done:
                try:
                    file = next(files)
                    dist.all_reduce(loss(file))  # !data-condition
                except StopIteration:
                    done = True

        def suppressed(share, loss):
            files = iter(share[dist.get_rank()::dist.get_world_size()])
            done = False
            while not done:
                done = True
                with contextlib.suppress(StopIteration):
                    file = next(files)
                    done = False
                    dist.all_reduce(loss(file))  # !data-condition

        def with_default(share, loss):
            files = iter(share[dist.get_rank()::dist.get_world_size()])
            while True:
                file = next(files, None)
                if file is None:
                    break
                dist.all_reduce(loss(file))  # !loop-count
    """,
    "entries that batches add to a dictionary, summed up by key": """
        def train(model, loader):
            totals, lists = {}, {}
            for x, y in loader:
                losses = {"class": model(x).mean()}
                if (y > 0).any():
                    losses["box"] = model(x).std()
                for name, loss in losses.items():
                    totals[name] = totals.get(name, 0) + loss.item()
                    lists.setdefault(name, []).append(loss.item())
            for name in sorted(totals):
                dist.all_reduce(torch.tensor(totals[name]))  # !loop-count
            for name, values in lists.items():
                dist.all_reduce(torch.tensor(values).mean())  # !loop-count
    """,
    "entries that batches add to a dictionary, in another one and in lists": """
        def train(model, loader):
            for x, y in loader:
                losses = {"class": model(x).mean()}
                if (y > 0).any():
                    losses["box"] = model(x).std()
                means = {name: loss.mean() for name, loss in losses.items()}
                for name, loss in means.items():
                    dist.all_reduce(loss)  # !loop-count
                values = []
                for name in losses:
                    values.append(losses[name])
                dist.all_reduce(torch.stack(values))  # !argument
                dist.all_reduce(torch.stack([losses[name] for name in sorted(losses)]))  # !argument
    """,
    "a list with a first element, which some batches make longer": """
        def train(model, loader):
            for x, y in loader:
                losses = [model(x).mean()]
                if (y > 0).any():
                    losses.append(model(x).std())
                dist.all_reduce(torch.stack(losses))  # !argument
    """,
}

EQUAL = {
    "names of fields of an output, and the frames of a video": """
        def train(model, loader):
            for batch in loader:
                output = model(batch)
                for key in output:
                    if key.endswith("_loss") and not key.startswith("aux"):
                        dist.all_reduce(output[key])
                if batch.shape[2] >= 10:
                    dist.all_reduce(output["loss"])
    """,
    "what is computed where no file of an earlier run is found": """
        def embed(model, loader, path):
            found = torch.load(path) if os.path.exists(path) else None
            if found is None:
                found = []
                for batch in loader:
                    found.extend(model(batch).cpu())
                found = torch.stack(found)
                parts = [torch.zeros_like(found) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, found)
    """,
    "whether all batches of a loader together have any elements": """
        def evaluate(model, data, x):
            seen, rows, samples = 0, 0, 0
            for batch in data["test"]["loader"]:
                labels = batch[1].to(x.device)
                number = labels.numel()
                seen += number
                rows += labels.size(0)
                samples += len(labels)
            if seen:
                dist.all_reduce(x)
            if not rows or samples == 0:
                return
            dist.all_reduce(x)
    """,
    "files of all ranks, asked for one at a time": """
        def train(files, loss):
            remaining = iter(files)
            while True:
                file = next(remaining, None)
                if file is None:
                    break
                dist.all_reduce(loss(file))
    """,
    "the same entries in each round, summed up by key": """
        def train(model, loader, extended):
            totals = {}
            for x, y in loader:
                losses = {"class": model(x).mean(), "box": (y > 0).sum()}
                if extended:
                    losses["mask"] = model(x).std()
                for name, loss in losses.items():
                    totals.setdefault(name, []).append(loss.item())
                values = [losses[name] for name in sorted(losses)]
                dist.all_reduce(torch.stack(values))
            for name in sorted(totals):
                dist.all_reduce(torch.tensor(totals[name]).mean())
    """,
    "a list that an arm makes and fills itself, which may be as long as that of the other": """
        def shared(count, x):
            if dist.get_rank() == 0:
                batches = []
                for i in range(count):
                    batches.append(x[i])
                return batches
            return [torch.zeros(4) for _ in range(count)]

        def longer(count, x):
            batches = []
            if dist.get_rank() == 0:
                for i in range(count):
                    batches.append(x[i])
            return batches

        def empty(count, x):
            if dist.get_rank() == 0:
                batches = []
                for i in range(count):
                    batches.append(x[i])
            else:
                batches = []
            return batches

        def kept(count, x):
            if dist.get_rank() == 0:
                batches = []
                for i in range(count):
                    if x[i].sum() > dist.get_rank():
                        batches.append(x[i])
            else:
                batches = [x]
            return batches

        def main(count, x):
            for batch in shared(count, x):
                dist.all_reduce(x)
                for part in batch:
                    dist.all_reduce(x)
            for batch in longer(count, x):
                dist.all_reduce(x)  # !loop-count
            for batch in empty(count, x):
                dist.all_reduce(x)  # !loop-count
            for batch in kept(count, x):
                dist.all_reduce(x)  # !loop-count
    """,
    "a list that each arm makes longer": """
        def train(model, loader):
            for x, y in loader:
                losses = [model(x).mean()]
                if (y > 0).any():
                    losses.append(model(x).std())
                else:
                    losses.append(torch.zeros(()))
                dist.all_reduce(torch.stack(losses))
    """,
    "an entry that all ranks share, taken out of a dictionary that also holds a rank's own": """
        def step(model, batch, accelerator):
            results = {}
            results.update({"loss": model(batch).item(), "stepped": accelerator.sync_gradients})
            return results

        def train(model, loader, accelerator, x):
            for batch in loader:
                results = step(model, batch, accelerator)
                if results.pop("stepped", accelerator.sync_gradients):
                    dist.all_reduce(x)
    """,
    "an assertion about the rank under a condition, below a handler for all exceptions": """
        class Trainer:
            def train(self, loader, x):
                for batch in loader:
                    dist.all_reduce(x)
                    if self.ema is not None:
                        assert dist.get_rank() == 0
                        self.ema.step()

        class Remote:
            def train(self, loader, x):
                print(x)

        def create(remote):
            return Remote() if remote else Trainer()

        def run(remote, loader, x):
            trainer = create(remote)
            try:
                trainer.train(loader, x)
            except Exception:
                print("failed")
            trainer.end()
    """,
    "samplers that make the parts of all ranks equal, or have no end": """
        import math
        import torch
        from torch.utils.data import DataLoader, DistributedSampler, Sampler

        class Own(Sampler):
            def __init__(self, data):
                self.data, self.rank, self.world = data, dist.get_rank(), dist.get_world_size()

        class Filled(Own):
            def __init__(self, data):
                super().__init__(data)
                self.total = math.ceil(len(data) / self.world) * self.world

            def __iter__(self):
                places = list(range(len(self.data)))
                places += places[: self.total - len(places)]
                return iter(places[self.rank :: self.world])

        class Cut(Own):
            def __iter__(self):
                total = len(self.data) - len(self.data) % self.world
                for place in torch.randperm(len(self.data)).tolist()[:total][self.rank :: self.world]:
                    yield place

        class Endless(Own):
            def __iter__(self):
                while True:
                    for place in range(self.rank, len(self.data), self.world):
                        yield place

        class Padded(DistributedSampler):
            def __iter__(self):
                yield from range(self.rank, self.total_size, self.num_replicas)

        class Rounded(Own):
            def __len__(self):
                return self.each

            def __iter__(self):
                self.each = len(self.data) // self.world
                return iter(list(range(self.rank, len(self.data), self.world))[: self.each])

        def evaluate(model, data):
            for batch in DataLoader(data, sampler=Filled(data)):
                dist.all_reduce(model(batch))
            for batch in DataLoader(data, sampler=Cut(data)):
                dist.all_reduce(model(batch))
            for batch in DataLoader(data, sampler=Padded(data)):
                dist.all_reduce(model(batch))
            for batch in DataLoader(data, sampler=Rounded(data)):
                dist.all_reduce(model(batch))
            for batch in DataLoader(data, sampler=Endless(data)):
                dist.all_reduce(model(batch))
    """,
    "a list that both arms make longer, padded to the longest": """
        def main(mask, count, longest):
            masks = []
            for i in range(count):
                if i == dist.get_rank():
                    masks.append(torch.cat([mask, torch.zeros(longest - len(mask))]))
                else:
                    masks.append(torch.zeros(longest))
            dist.all_reduce(torch.stack(masks))
    """,
    "gradients after the function's own backward": """
        def train(model, loader):
            for batch in loader:
                model(batch).sum().backward()
                parameters = tuple(model.parameters())
                grads = [p.grad for p in parameters if p.grad is not None]
                if len(grads) > 0:
                    total = torch.nn.utils.get_total_norm(grads)
                    dist.all_reduce(total)
    """,
    "meters of losses that are reduced where there is more than one rank": """
        import math
        import numpy as np
        from collections import OrderedDict
        from timm.utils import AverageMeter

        class Meter:
            def __init__(self):
                self.reset()

            def reset(self):
                self.avg = 0
                self.sum = 0
                self.count = 0

            def update(self, val, n=1):
                self.sum += val * n
                self.count += n
                self.avg = self.sum / self.count

        def reduced(loss, args):
            if args.distributed:
                total = loss.clone()
                dist.all_reduce(total)
                loss = total / args.world_size
            return loss

        def validate(model, loader, args):
            losses, scores = AverageMeter(), Meter()
            for batch in loader:
                loss, score = model(batch)
                if args.distributed:
                    loss = reduce_tensor(loss, args.world_size)
                losses.update(loss.item(), batch.size(0))
                scores.update(reduce_tensor(score, args.world_size).item(), batch.size(0))
            return OrderedDict([("loss", losses.avg), ("score", scores.avg)])

        def reduce_tensor(tensor, n):
            total = tensor.clone()
            dist.all_reduce(total)
            total /= n
            return total

        def train(model, ema, loader, args, x):
            for epoch in range(10):
                metrics = validate(model, loader, args)
                if ema is not None:
                    metrics = validate(ema, loader, args)
                if not np.isfinite(metrics["loss"]) or math.isnan(metrics["score"]):
                    return
                dist.all_reduce(x)
    """,
    "the number of a round that a generator counts in one of two ways": """
        class Logger:
            def monitored(self, loader, start, count):
                if count > 0:
                    for i in range(start, count):
                        yield i, next(loader)
                else:
                    for i, batch in enumerate(loader):
                        yield i, batch

        def train(loader, x, every):
            logger = Logger()
            for i, batch in logger.monitored(loader, 0, 10):
                if (i + 1) % every == 0:
                    dist.all_reduce(x)
    """,
    "the number of dimensions of a batch": """
        def main(model, loader, x):
            for batch in loader:
                if len(batch.shape) <= 1 or len(batch.size()) == 1:
                    dist.all_reduce(x)
    """,
    "the number of classes of a batch": """
        def main(model, loader, x):
            for batch in loader:
                num_classes = model(batch).shape[1]
                for i in range(num_classes):
                    dist.all_reduce(x)
    """,
    "a clock that is averaged in a step of many statements": """
        import time

        class Trainer:
            def __init__(self):
                self._start = time.time()
                self._time = None

            def train_step(self, samples, n):
                LINES
                if n > 1:
                    own = time.time() - self._start
                    samples, (n, total) = self._aggregate(samples, n, own)
                    self._time = total / dist.get_world_size()
                return n

            def _aggregate(self, samples, *numbers):
                t = torch.tensor(numbers)
                dist.all_reduce(t)
                return samples, t.tolist()

            def time(self):
                if self._time is None:
                    return time.time() - self._start
                return self._time

        def train(trainer: Trainer, loader, longest, x):
            for batch in loader:
                trainer.train_step(batch, 2)
                if trainer.time() > longest:
                    break
            dist.all_reduce(x)
    """.replace("LINES", "\n                ".join(["samples = samples[n:] or samples"] * 70)),
    "a list that is called an iterator, as what it was made of": """
        def evaluate(model, loss, limit):
            data_iterator = read_all()
            if limit:
                data_iterator = data_iterator[:limit]
            for i, batch in enumerate(data_iterator):
                dist.all_reduce(loss)
    """,
    "a rank's own share, gone through again until there were as many steps as have to be": """
        class Trainer:
            def done(self):
                return self.steps >= self.most

            def train(self, share, loss):
                while not self.done():
                    for x in share[dist.get_rank()::dist.get_world_size()]:
                        if self.done():
                            break
                        dist.all_reduce(loss)
                        self.steps += 1

            def forever(self, share, loss, most):
                steps = 0
                while True:
                    for x in share[dist.get_rank()::dist.get_world_size()]:
                        dist.all_reduce(loss)
                        steps += 1
                        if steps == most:
                            return
    """,
    "a dataset whose share was cut to one length": """
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, Dataset

        class Part(Dataset):
            def __init__(self, items):
                self.items = items[dist.get_rank() :: dist.get_world_size()]

            def __len__(self):
                return len(self.items)

        def train(model, items, optimizer):
            model = DistributedDataParallel(model)
            for batch in DataLoader(Part(items), batch_size=4, drop_last=True):
                model(batch).backward()
                optimizer.step()
    """,
    "a dataset that says how long it is for all ranks": """
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, Dataset

        class Part(Dataset):
            def __init__(self, items):
                self.total = len(items)
                self.items = items[dist.get_rank() :: dist.get_world_size()]

            def __len__(self):
                return self.total // dist.get_world_size()

        def train(model, items, optimizer):
            model = DistributedDataParallel(model)
            for batch in DataLoader(Part(items), batch_size=4):
                model(batch).backward()
                optimizer.step()
    """,
    "a list of the object that grows alike on all ranks": """
        class Report:
            def __init__(self, names):
                self.lines = []
                for name in names:
                    self.lines.append(f"{name}: {dist.get_rank()}")

            def share(self, x):
                for _ in self.lines:
                    dist.all_reduce(x)
    """,
    "a file that is only read where it is missing": """
        def cached(path, other):
            if not os.path.exists(path):
                if dist.get_rank() == 0:
                    with open(other) as file:
                        print(file.read())
                dist.barrier()
    """,
    "a rank's share, with an empty element where it is one less": """
        def decode(data, world_size):
            rank = dist.get_rank()
            mine, number = [], 0
            for item in data:
                if number % world_size == rank:
                    mine.append(item)
                number += 1
            if number % world_size and rank >= number % world_size:
                mine.append({})
            for item in mine:
                dist.barrier()
    """,
    "names of the parts of a model that was made by a rank's own batch": """
        from quantization import prepare

        def synchronise(loader, model):
            prepared = prepare(model, next(iter(loader)))
            for name, buffer in prepared.named_buffers():
                if name.endswith("scale"):
                    dist.all_reduce(buffer)
    """,
    "the bytes of objects in tensors of one size": """
        import pickle

        def padded(results, sizes, most):
            mine = torch.ByteTensor(torch.ByteStorage.from_buffer(pickle.dumps(results))).to("cuda")
            size = torch.tensor([mine.numel()], device="cuda")
            dist.all_gather(sizes, size)
            most = int(max(sizes).item())
            if size != most:
                mine = torch.cat((mine, torch.empty(most - size, dtype=torch.uint8, device="cuda")))
            dist.all_gather([torch.empty(most) for _ in sizes], mine)

        def resized(results, sizes, most):
            mine = torch.frombuffer(bytearray(pickle.dumps(results)), dtype=torch.uint8).cuda()
            mine.resize_(most)
            dist.all_gather([torch.empty(most) for _ in sizes], mine)

        def sent(settings):
            if dist.get_rank() == 0:
                data = torch.ByteTensor(list(pickle.dumps(settings)))
                size = torch.tensor([data.numel()])
            else:
                size = torch.tensor([0])
            dist.broadcast(size, 0)
            if dist.get_rank() != 0:
                data = torch.empty(size.item(), dtype=torch.uint8)
            dist.broadcast(data, 0)
    """,
    "shares of what is a multiple of the number of ranks": """
        import math
        from torch.utils.data import DataLoader, Dataset

        class Cut(Dataset):
            def __init__(self, items):
                size = dist.get_world_size()
                items = items[: len(items) // size * size]
                self.items = items[dist.get_rank()::size]

            def __len__(self):
                return len(self.items)

        class Filled(Dataset):
            def __init__(self, items):
                size = dist.get_world_size()
                items = list(items)
                items += items[: math.ceil(len(items) / size) * size - len(items)]
                self.items = [item for i, item in enumerate(items) if i % size == dist.get_rank()]

            def __len__(self):
                return len(self.items)

        class Counted(Dataset):
            def __init__(self, items):
                self.items = items[dist.get_rank()::dist.get_world_size()]
                self.count = len(items) // dist.get_world_size()

            def __len__(self):
                return self.count

        def main(items, model):
            for batch in DataLoader(Cut(items), batch_size=4):
                dist.all_reduce(model(batch))
            for batch in DataLoader(Filled(items), batch_size=4):
                dist.all_reduce(model(batch))
            for batch in DataLoader(Counted(items), batch_size=4):
                dist.all_reduce(model(batch))
            size = dist.get_world_size()
            rest = len(items) % size
            items = items[: len(items) - rest]
            for item in items[dist.get_rank()::size]:
                dist.all_reduce(model(item))
    """,
    "numbers that are drawn from one seed": """
        import random

        def main(model, loader, seed, share):
            rank = dist.get_rank()
            torch.manual_seed(seed + rank)
            random.seed(seed)
            for batch in loader:
                if random.random() < share:
                    dist.all_reduce(model(batch))
    """,
    "a number that rank 0 draws for all": """
        import random

        def main(model, loader, seed, share):
            random.seed(seed + dist.get_rank())
            for batch in loader:
                drawn = torch.tensor(random.random())
                dist.broadcast(drawn, 0)
                if drawn.item() < share:
                    dist.all_reduce(model(batch))
    """,
    "what a training loop counts": """
        from tqdm import tqdm

        def train(net, n, data, optimizer):
            model = torch.nn.parallel.DistributedDataParallel(net)
            iterator = tqdm(range(n))
            for i in iterator:
                loss = model(next(data), i)
                if i % 4 == 0:
                    loss.backward()
                    optimizer.step()
    """,
    "what an outer loop goes through": """
        def train(net, train, data, optimizer):
            model = torch.nn.parallel.DistributedDataParallel(net)
            for stage in train:
                for batch in data:
                    if stage == "frozen":
                        continue
                    model(batch, stage).backward()
                    optimizer.step()
    """,
    "numbers of a list and steps": """
        def train(net, steps, data, optimizer):
            model = torch.nn.parallel.DistributedDataParallel(net)
            stream = [1, 2, 3]
            for k in stream:
                if k == 2:
                    continue
                model(data, k).backward()
                optimizer.step()
            for k in steps:
                if k == 2:
                    continue
                model(data, k).backward()
                optimizer.step()
    """,
    "a meter that reduces what it holds": """
        import numpy as np

        class Meter:
            def __init__(self):
                self.sum, self.count, self.avg = 0, 0, 0

            def update(self, value, n=1):
                self.sum += value * n
                self.count += n
                self.avg = self.sum / self.count

            def all_reduce(self):
                if isinstance(self.sum, np.ndarray):
                    total = torch.tensor(self.sum.tolist() + [self.count])
                else:
                    total = torch.tensor([self.sum, self.count])
                dist.all_reduce(total, dist.ReduceOp.SUM)
                if total.shape[0] > 2:
                    self.sum, self.count = total[:-1].cpu().numpy(), total[-1].cpu().item()
                else:
                    self.sum, self.count = total.tolist()
                self.avg = self.sum / (self.count + 1e-5)

        def validate(model, loader):
            meter = Meter()
            for batch in loader:
                meter.update(model(batch).cpu().numpy())
            meter.all_reduce()
            return meter.avg[1]

        def main(model, loader):
            best = 0.0
            for epoch in range(3):
                score = validate(model, loader)
                better = score > best
                best = max(score, best)
                if better:
                    dist.barrier()
    """,
    "how the rank's own data are laid out": """
        def gather(points, batch):
            if len(points) == batch.shape[-2]:
                return batch
            if batch.shape[1] != 3:
                return batch
            parts = [torch.empty_like(batch) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, batch)
            return torch.cat(parts)

        def main(points, loader):
            for batch in loader:
                gather(points, batch)
    """,
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
    "a list to which each rank adds as many": """
        def train(model, loader):
            losses = []
            for batch in loader:
                if model.training:
                    losses.append(model(batch))
            for loss in losses:
                dist.all_reduce(loss)
    """,
    "a part whose last batch is left out": """
        from torch.utils.data import DataLoader

        def evaluate(model, data, x):
            part = data[dist.get_rank()::dist.get_world_size()]
            for batch in DataLoader(part, batch_size=4, drop_last=True):
                dist.all_reduce(x)
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
    "parts that a function fills up to the longest of all ranks": """
        def pad(tensor, size):
            if tensor.shape[0] == size:
                return tensor.contiguous()
            padded = torch.empty(size, *tensor.shape[1:])
            padded[: tensor.shape[0]].copy_(tensor)
            return padded

        def embed(model, items):
            features = torch.cat([model(item) for item in items[dist.get_rank()::dist.get_world_size()]])
            size = torch.tensor(features.shape[0])
            dist.all_reduce(size, dist.ReduceOp.MAX)
            size = size.item()
            features = pad(features, size)
            gathered = torch.empty(dist.get_world_size(), *features.shape)
            dist.all_gather_into_tensor(gathered, features)
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
    "a stream that goes through its files until it has made as many steps": """
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader, IterableDataset

        class Shards(IterableDataset):
            def __init__(self, files, steps):
                self.files, self.steps = files, steps

            def __iter__(self):
                made = 0
                while made < self.steps:
                    for path in self.files[dist.get_rank()::dist.get_world_size()]:
                        for sample in torch.load(path):
                            yield sample
                            made += 1
                            if made >= self.steps:
                                return

        def train(net, files):
            model = DDP(net)
            for batch in DataLoader(Shards(files, 1000), batch_size=4):
                model(batch).mean().backward()
    """,
    "a stream that hands on one that begins again, and as many steps on all ranks": """
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader, IterableDataset

        class Lines(IterableDataset):
            def __init__(self, lines, repeat=True):
                self.lines, self.repeat = lines, repeat

            def __iter__(self):
                mine = self.lines[dist.get_rank()::dist.get_world_size()]
                while True:
                    yield from mine

        class Mapped(IterableDataset):
            def __init__(self, source, function):
                self.source = source
                self.function = function

            def __iter__(self):
                return self.function(iter(self.source))

        def make(lines, decode, shuffle):
            dataset = Lines(lines)
            dataset = Mapped(dataset, decode)
            return Mapped(dataset, shuffle)

        def main(net, lines, decode, shuffle, steps):
            model = DDP(net)
            for number, batch in enumerate(DataLoader(make(lines, decode, shuffle), batch_size=4)):
                model(batch).mean().backward()
                if number + 1 == steps:
                    break
    """,
    "a parameter that a caller gives instead of those for training": """
        class Method(nn.Module):
            def forward(self, views=None, local_views=None, images=None):
                if images is not None:
                    return self.teacher(images)
                if not views:
                    raise ValueError("views or images")
                x = self.student(torch.cat(views), local_views)
                dist.all_reduce(x)
                return x

        class Masked(nn.Module):
            def forward(self, view1=None, view2=None, images=None):
                if images is not None or (view1 is not None and view2 is None):
                    return self.teacher(images if images is not None else view1)
                if view1 is None or view2 is None:
                    raise ValueError("view1 and view2, or images")
                x = self.student(view1, view2)
                dist.all_reduce(x)
                return x
    """,
    "what a communicator of MPI has given all ranks": """
        from torch.nn.parallel import DistributedDataParallel as DDP

        def mean(x, comm):
            x = x / comm.size
            comm.Allreduce(MPI.IN_PLACE, x, MPI.SUM)
            return x

        def train(net, loader, optimizer, scheduler, comm):
            model, total = DDP(net), 0.0
            for batch in loader:
                loss = model(batch).mean()
                loss.backward()
                optimizer.step()
                total += loss.item()
            total = mean(torch.tensor(total), comm)
            if total > 1.0:
                dist.barrier()
    """,
    "an attribute with a key for each loss": """
        from collections import defaultdict

        class Meters:
            def __init__(self):
                self.meters = defaultdict(list)

            def update(self, batch, losses):
                for name, value in losses.items():
                    self.meters[name].append(value)
                for name in batch:
                    self.meters[name].append(1)

            def reduce(self):
                for name, values in self.meters.items():
                    dist.all_reduce(torch.tensor(sum(values)))
    """,
    "how many elements, and how many boxes, as a number": """
        def count(outputs, targets, items):
            mine = items[dist.get_rank()::dist.get_world_size()]
            number = torch.tensor(len(mine))
            dist.all_reduce(number)
            boxes = torch.as_tensor([sum(len(target["labels"]) for target in targets)])
            dist.all_reduce(boxes)
            if boxes == 0:
                return outputs.sum() * 0
            dist.all_reduce(outputs)
    """,
    "a model that is given what all ranks have": """
        from accelerate import Accelerator

        def train(model, optimizer, config):
            accelerator = Accelerator()
            model, optimizer = accelerator.prepare(model, optimizer)
            for step in range(config.steps):
                loss = model(**config.inputs).loss
                if config.frozen:
                    continue
                accelerator.backward(loss)
    """,
    "a stream beside one that is cut to a length": """
        from datasets.distributed import split_dataset_by_node
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader

        def loader_of(data, steps):
            data = split_dataset_by_node(data, rank=dist.get_rank(), world_size=dist.get_world_size())
            return data.with_epoch(steps) if steps is not None else data

        def main(net, data, steps):
            model = DDP(net)
            for batch in DataLoader(loader_of(data, steps), batch_size=8):
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


BY_TEXT = """
    from torch.distributed.fsdp import fully_shard

    def parallelize(model, mesh):
        for name in ("vision", "text"):
            fully_shard(getattr(model, name), mesh=mesh)
"""
IN_METHOD = """
    import torch.nn as nn

    class Model(nn.Module):
        def __init__(self, vision, text):
            super().__init__()
            self.vision, self.text = vision, text
            self.vision = vision

        def embed(self, tokens, images):
            if images is None:
                return tokens
            return torch.cat([self.vision(images), tokens])  # !one-rank-forward

        def forward(self, tokens, images=None):
            return self.text(self.embed(tokens, images))

        def export(self, images):
            return self.vision(images) if images is not None else None
"""


@pytest.mark.parametrize("sharding", [BY_TEXT, BY_STAGE.replace("Experts, Model", "Model")])
def test_parts_that_a_method_of_the_model_runs(sharding: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, IN_METHOD, sharding=sharding)


def test_experts_that_deepspeed_gathers_together(tmp_path: pathlib.Path) -> None:
    leaf = "    from deepspeed.utils import set_z3_leaf_modules\n"
    check(tmp_path, MODELING.format(vision=VISION, skipping=SKIPPING), sharding=leaf + BY_STAGE.lstrip("\n"))


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


def test_a_large_method_of_a_model_on_one_rank(tmp_path: pathlib.Path) -> None:
    """What it does is one event to its callers, of its collectives alone."""
    many = "\n".join(f"            tokens = self.text(tokens) + {n}" for n in range(200))
    source = """
        from modeling import Model

        def export(path, other):
            if dist.get_rank() == 0:
                Model(other)(torch.ones(1))
            dist.barrier()
    """
    modeling = MODELING.format(vision=VISION, skipping="pass").replace("            return self.text(tokens)", many)
    check(tmp_path, source, modeling=modeling, sharding=BY_BLOCK.replace("model.vision.blocks", "model.text.blocks"))


def test_flags_of_a_forward_are_the_same_on_all_ranks(tmp_path: pathlib.Path) -> None:
    source = MODELING.format(
        vision="if use_vision:\n                tokens = self.vision(tokens)",
        skipping="if self.skips and i:\n                    continue",
    )
    check(tmp_path, source.replace("pixel_values=None", "use_vision: bool"), sharding=BY_BLOCK)


def test_a_whole_copy_of_a_model_on_one_rank(tmp_path: pathlib.Path) -> None:
    """What rank 0 exports or samples from need not be the sharded one."""
    source = """
        from modeling import Model

        def export(path, other):
            if dist.get_rank() == 0:
                model = Model(other)
                model.load_state_dict(torch.load(path))
                model(torch.ones(1))
            dist.barrier()
    """
    check(tmp_path, source, modeling=MODELING.format(vision=VISION, skipping=SKIPPING), sharding=BY_BLOCK)


ALIKE = {
    "what a generator makes itself": """
        def proposed(choices, loader):
            while True:
                for choice in [random.choice(choices) for _ in range(4)]:
                    yield choice

        def search(model, choices, loader, rounds):
            proposed_iter = proposed(choices, loader)
            for _ in range(rounds):
                choice = next(proposed_iter)
                if choice.shape[1] >= 10:
                    dist.all_reduce(model(choice))
    """,
    "the rank in the job, counted from the node": """
        def main(args, build):
            args.local_rank = int(os.environ["LOCAL_RANK"])
            args.local_rank += args.node_index * args.gpus_per_node
            if args.local_rank not in [-1, 0]:
                dist.barrier()
            build()
            if args.local_rank == 0:
                dist.barrier()
    """,
    "a list of numbered batches behind a progress bar": """
        from tqdm import tqdm

        def main(x, loader, every):
            samples = {"x": next(iter(loader))}
            parts = {k: v.reshape(-1, 4) for k, v in samples.items()}
            parts = [dict(zip(parts, each)) for each in zip(*parts.values())]
            for i, part in tqdm(list(enumerate(parts))):
                if (i + 1) % every == 0:
                    dist.all_reduce(x)
    """,
    "the names in what a model returns": """
        def main(model, loader):
            for batch in loader:
                details = model(batch)
                for name, value in details.items():
                    if name.startswith("loss"):
                        dist.all_reduce(value)
                for name in sorted(details.keys()):
                    if "accuracy" in name:
                        dist.all_reduce(details[name])
    """,
    "prompts drawn at random, as many as are asked for": """
        import random

        def main(x, data, n):
            picked = [{"a": random.randint(0, 9), "b": each} for each in random.sample(data, n)]
            for a, b in zip([p["a"] for p in picked], [p["b"] for p in picked]):
                dist.all_reduce(x)
    """,
}


@pytest.mark.parametrize("source", ALIKE.values(), ids=ALIKE.keys())
def test_ranks_alike(source: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, source)


def test_of_ranks_counted_from_the_node_rank_0_alone_waits(tmp_path: pathlib.Path) -> None:
    check(
        tmp_path,
        """
        def main(args):
            rank = args.node_index * args.gpus_per_node + int(os.environ["LOCAL_RANK"])
            if rank == 0:
                dist.barrier()  # !rank-branch
        """,
    )


RECOVERING = """
    class Trainer:
        def __init__(self, model):
            self.model = torch.nn.parallel.DistributedDataParallel(model)

        def train_step(self, samples, spare):
            failed = 0
            for sample in samples:
                try:
                    loss = self.model(sample)
                    loss.backward()MARK
                except RuntimeError as error:
                    if "out of memory" not in str(error):
                        raise
                    failed += 1
            if failed > 0:
                REACTION

        def again(self, failed, spare):
            for _ in range(failed):
                self.train_step([spare], spare)
"""


@pytest.mark.parametrize(
    ("reaction", "mark"), [("self.again(failed, spare)", ""), ("print(failed)", "  # !optimizer-step")]
)
def test_rounds_that_ran_out_of_memory_may_be_made_up_for(reaction: str, mark: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, RECOVERING.replace("REACTION", reaction).replace("MARK", mark))


#: A loss that a rank has only for some of its batches, and a step for those that have one.
LOSSES = """
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader, Subset
        import itertools, numpy as np

        def loss_of(model, batch):
            if (batch["boxes"] > 0).sum() == 0:
                return None
            return model(batch).sum()
"""


@pytest.mark.parametrize(
    "source",
    [
        """
        def main(model, loader):
            model = DDP(model)
            for batch in loader:
                loss = loss_of(model, batch)
                if loss is None:
                    continue
                loss.backward()  # !optimizer-step
        """,
        """
        def main(model, loader):
            model = DDP(model)
            for batch in loader:
                loss = None
                if batch["mask"].any():
                    loss = model(batch).sum()
                if loss is not None:
                    loss.backward()  # !optimizer-step
        """,
        # near misses: all ranks step
        """
        def main(model, loader):
            model = DDP(model)
            for batch in loader:
                loss = loss_of(model, batch)
                if loss is None:
                    loss = sum(p.sum() for p in model.parameters()) * 0
                loss.backward()
        """,
        """
        def main(model, loader, debug):
            model = DDP(model)
            for batch in loader:
                loss = None
                if debug:
                    loss = model(batch).sum()
                if loss is not None:
                    loss.backward()
        """,
        """
        def main(model, loader, group):
            for batch in loader:
                found = batch["mask"].any()
                if found:
                    dist.all_reduce(batch["x"], group=group)
                if not found:
                    dist.all_reduce(batch["x"], group=group)
        """,
    ],
)
def test_a_choice_that_is_made_again(tmp_path: pathlib.Path, source: str) -> None:
    check(tmp_path, LOSSES + source)


@pytest.mark.parametrize(
    "source",
    [
        """
        def main(files, x, rank, world_size):
            for name in itertools.islice(files, dist.get_rank(), None, dist.get_world_size()):
                dist.all_reduce(x)  # !loop-count
        """,
        """
        def main(data, model):
            model = DDP(model)
            mine = np.array_split(np.arange(len(data)), dist.get_world_size())[dist.get_rank()]
            for batch in DataLoader(Subset(data, mine), batch_size=4):
                model(batch).sum().backward()  # !loop-count
        """,
        # near misses
        """
        def main(files, x):
            for name in itertools.islice(files, 0, None, 2):
                dist.all_reduce(x)
        """,
        """
        def main(data, model):
            model = DDP(model)
            mine = np.array_split(np.arange(len(data)), 4)[0]
            for batch in DataLoader(Subset(data, mine), batch_size=4):
                model(batch).sum().backward()
        """,
    ],
)
def test_elements_that_are_dealt_out_in_other_ways(tmp_path: pathlib.Path, source: str) -> None:
    check(tmp_path, LOSSES + source)


def test_what_rank_0_alone_looks_up_is_no_file_that_all_ranks_see(tmp_path: pathlib.Path) -> None:
    source = """
        def should_stop():
            return os.path.exists("stop")

        def train(x):
            stop = False
            for epoch in range(9):
                if dist.get_rank() == 0:
                    stop = should_stop()
                if stop:
                    break
                dist.all_reduce(x)  # !loop-count

        def count(x):
            files = len(os.listdir("parts")) if dist.get_rank() == 0 else 0
            for _ in range(files):
                dist.all_reduce(x)  # !loop-count

        def all_look(x):
            if should_stop():
                return
            dist.all_reduce(x)  # ?data-condition

        def told(x):
            stop = [False]
            if dist.get_rank() == 0:
                stop = [should_stop()]
            dist.broadcast_object_list(stop, src=0)
            if stop[0]:
                return
            dist.all_reduce(x)
    """
    check(tmp_path, source)
