"""Short forms of trainers of several fields that two processes ran: as a program stands, one of the processes waits for
ever; with the change beside it, both come to their end. Those with DeepSpeed or accelerate, and what is silent, were
not run."""

from __future__ import annotations

import pathlib
import re

import pytest
from test_mismatches import MARK, check, mismatches

#: The program, the other files of its project, and what both ranks have to do instead: text of the program, or of
#: another file, and what stands for it.
HANGING = {
    "texts that each rank's own tokens end, by a model whose parameters all ranks hold": (
        """
        def rollout(policy, prompts, eos_id, longest):
            sequences = prompts
            finished = torch.zeros(len(prompts), dtype=torch.bool)
            for _ in range(longest):
                logits = policy(sequences)[:, -1]  # !one-rank-forward
                tokens = logits.argmax(dim=-1)
                sequences = torch.cat([sequences, tokens[:, None]], dim=1)
                finished |= tokens == eos_id
                if all_finished(finished):
                    break
            return sequences

        def all_finished(finished):
            return bool(finished.all())
        """,
        {
            "ppo": """
            from torch import nn
            from torch.distributed.fsdp import fully_shard
            from program import rollout

            def main():
                dist.init_process_group("gloo")
                policy = nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, 6))
                for part in policy:
                    fully_shard(part)
                fully_shard(policy)
                rollout(policy, torch.randint(0, 6, (1, 3)), 3, 20)
            """
        },
        (
            "return bool(finished.all())",
            "left = (~finished).sum()\n            dist.all_reduce(left)\n            return left.item() == 0",
        ),
    ),
    "the same, by a model that the object was made with, and a limit that is the same for all": (
        """
        class Decoder:
            def __init__(self, model, eos, limit=128):
                self.model, self.eos, self.limit = model, eos, limit

            def __call__(self, ids):
                alive = torch.ones(len(ids), dtype=torch.bool)
                while alive.any() and ids.shape[1] < self.limit:
                    token = self.model(ids)[:, -1].argmax(-1)  # !one-rank-forward
                    ids = torch.cat([ids, token[:, None]], 1)
                    alive = alive & (token != self.eos)
                return ids
        """,
        {
            "main": """
            from torch.distributed.fsdp import fully_shard
            from program import Decoder

            def main():
                model = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 100))
                fully_shard(model)
                Decoder(model, 3)(torch.randint(0, 100, (4, 8)))
            """
        },
        ("while alive.any() and ids", "while ids"),
    ),
    "the same, where only the file that calls the function shows that the engine shards": (
        """
        def generate(model, ids, eos, longest):
            done = torch.zeros(ids.size(0), dtype=torch.bool)
            for _ in range(longest):
                token = model(input_ids=ids).logits[:, -1].argmax(-1)  # !one-rank-forward
                ids = torch.cat([ids, token[:, None]], 1)
                done |= token == eos
                if done.all():
                    break
            return ids
        """,
        {
            "main": """
            import deepspeed
            from program import generate

            def main(model, prompts, tok):
                cfg = {"zero_optimization": {"stage": 3}}
                engine, *_ = deepspeed.initialize(model=model, config=cfg)
                generate(engine, prompts, tok.eos_token_id, 64)
            """
        },
        ('"stage": 3', '"stage": 1'),
    ),
    "a helper that gathers a state dict, where only the file that calls it shows that something is sharded": (
        """
        import accelerate
        from saving import save

        def main(model):
            accelerator = accelerate.Accelerator(fsdp_plugin=accelerate.FullyShardedDataParallelPlugin())
            model = accelerator.prepare(model)
            if accelerator.is_local_main_process:
                save(accelerator, model, "out")  # !implicit-collective
        """,
        {
            "saving": """
            def save(accelerator, model, path):
                whole = accelerator.unwrap_model(model)
                whole.save_pretrained(path, state_dict=accelerator.get_state_dict(model))
            """
        },
        ("fsdp_plugin=accelerate.FullyShardedDataParallelPlugin()", ""),
    ),
    "a criterion that refuses what the model gives on one rank, by an exception of Python's": (
        """
        from torch.nn.parallel import DistributedDataParallel
        from criterion import Matcher

        class Trainer:
            def __init__(self, net, pages):
                self.net = DistributedDataParallel(net)
                self.pages, self.matcher = pages, Matcher()
                self.optim = torch.optim.Adam(self.net.parameters())

            def fit(self):
                for page, lengths in self.pages:
                    found = self.net(page)
                    try:
                        loss = self.matcher(found, lengths)
                    except ValueError:
                        continue
                    self.optim.zero_grad()
                    loss.backward()  # !optimizer-step
                    self.optim.step()
        """,
        {
            "criterion": """
            class Matcher:
                def __call__(self, found, lengths):
                    cost = torch.cdist(found, found)
                    if not torch.isfinite(cost).all():
                        raise ValueError("matrix contains invalid numeric entries")
                    return cost.min()
            """
        },
        ("continue\n", "loss = found.sum() * 0\n"),
    ),
    "the same, where what it refuses is no data": (
        """
        from torch.nn.parallel import DistributedDataParallel

        def loss_of(found, kind):
            if kind not in ("l1", "l2"):
                raise ValueError(kind)
            return found.mean()

        def refusing(found, kind):
            if found.mean() > 10 and kind == "l1":
                raise ValueError(kind)
            return found.mean()

        def fit(net, pages, kind):
            model = DistributedDataParallel(net)
            for page in pages:
                found = model(page)
                try:
                    loss = refusing(found, kind)
                except ValueError:
                    continue
                loss.backward()  # !optimizer-step
        """,
        {},
        ("loss = refusing(", "loss = loss_of("),
    ),
    "an answer that cannot be read, in the share of one rank": (
        """
        import json

        def score(model, samples, rank, world):
            scores = []
            for sample in samples[rank::world]:
                try:
                    scores.append(float(json.loads(model(sample))["answer"] == sample["gold"]))
                except (json.JSONDecodeError, KeyError):
                    return None
            out = [None] * world
            dist.all_gather_object(out, scores)  # !data-condition
            return sum(map(sum, out))

        def main(model, samples):
            score(model, samples, dist.get_rank(), dist.get_world_size())
        """,
        {},
        ("return None\n", "scores.append(0.0)\n"),
    ),
    "boxes that one rank may have found none of, kept until they are gathered": (
        """
        class BoxEvaluator:
            def __init__(self):
                self.boxes = []

            def process(self, outputs):
                for box, score in outputs:
                    if score > 0.5:
                        self.boxes.append(box)

            def evaluate(self):
                if not self.boxes:
                    return 0.0
                gathered = [None] * dist.get_world_size()
                dist.all_gather_object(gathered, self.boxes)  # !data-condition
                return sum(b[2] * b[3] for part in gathered for b in part)
        """,
        {},
        ("                if not self.boxes:\n                    return 0.0\n", ""),
    ),
    "a download by rank 0, in one `try` with the barrier behind it": (
        """
        import os
        import requests

        def download(url, path):
            found = requests.get(url, timeout=10)
            found.raise_for_status()
            with open(path, "wb") as file:
                file.write(found.content)

        def ensure(url, path):
            try:
                if int(os.environ.get("RANK", "0")) == 0:
                    download(url, path)
                dist.barrier()  # !data-condition
            except Exception as error:
                print("download failed", error)
            return path
        """,
        {},
        ("print(", "raise RuntimeError("),
    ),
}


@pytest.mark.parametrize("name", HANGING)
def test_one_rank_waits(name: str, tmp_path: pathlib.Path) -> None:
    program, others, _ = HANGING[name]
    check(tmp_path, program, **others)
    # Exceptions that any rank may get, or none, are for a rule that has to be asked for.
    assert "exception" not in {found.cause for found in mismatches(tmp_path, program, **others)}


@pytest.mark.parametrize("name", HANGING)
def test_both_ranks_end(name: str, tmp_path: pathlib.Path) -> None:
    program, others, (old, new) = HANGING[name]
    assert sum(text.count(old) for text in (program, *others.values())) == 1
    files = {other: text.replace(old, new) for other, text in others.items()}
    check(tmp_path, re.sub(MARK.pattern, "", program.replace(old, new), flags=re.MULTILINE), **files)


SILENT = {
    "two tests of a step that all ranks read from one file, and behind each of them work of rank 0 alone": """
        from pathlib import Path
        from accelerate import Accelerator
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        class Log:
            def log(self, values, step=None, mode="train", key=None):
                if mode not in {"train", "eval"}:
                    raise ValueError(mode)
                if step is None and key is None:
                    raise ValueError("no step")

        def whole(model):
            if not is_sharded(model):
                return model.state_dict()
            return get_model_state_dict(model)

        def publish(model):
            whole(model)
            dist.barrier()

        def is_main():
            return not dist.is_initialized() or dist.get_rank() == 0

        def resume(path):
            return load(path if Path(path).exists() else None)["step"]

        def train(path, meters, every, often, keep, model, accelerator: Accelerator):
            log = Log()
            step = resume(path)
            step += 1
            is_log = every > 0 and step % every == 0
            is_often = is_due(step, often)
            if is_log:
                for meter in meters.values():
                    dist.all_reduce(meter)
                if is_main():
                    log.log({}, step=step, mode="eval")
            if keep and is_often:
                accelerator.wait_for_everyone()
                if is_main():
                    log.log({}, step, mode="eval")
            publish(model)
    """,
    "a list of what is to be called, that all ranks fill alike and that is not gathered": """
        class Buckets:
            def __init__(self):
                self.buckets, self.names = [], []

            def add(self, bucket, name):
                self.buckets.append(bucket)
                self.names.append(name)

            def reduce(self):
                if not self.buckets:
                    return
                for bucket in self.buckets:
                    dist.all_reduce(bucket)
    """,
    "tokens of a model of this rank alone, and those of one that each rank compares with its labels": """
        from torch.nn.parallel import DistributedDataParallel as DDP

        def generate(model, ids, eos, longest, x):
            for _ in range(longest):
                token = model(ids)[:, -1].argmax(-1)
                ids = torch.cat([ids, token[:, None]], 1)
                if (token == eos).all():
                    break
            dist.all_reduce(x)
            return ids
    """,
}


@pytest.mark.parametrize("name", SILENT)
def test_nobody_waits(name: str, tmp_path: pathlib.Path) -> None:
    check(tmp_path, SILENT[name])
