"""Trainers of several fields, each of which was run by two processes: as it stands, one of them waits for ever; with
the change beside it, both come to their end."""

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
