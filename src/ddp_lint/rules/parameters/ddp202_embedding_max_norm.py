from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.queries import literal_text
from ddp_lint.source.tree import called, subtree
from ddp_lint.view.wraps import argument

_LAYERS = {"torch.nn.Embedding": 3, "torch.nn.EmbeddingBag": 2}
_FUNCTIONS = {"torch.nn.functional.embedding": 3, "torch.nn.functional.embedding_bag": 4}


class EmbeddingMaxNorm(Rule):
    """An embedding with `max_norm` rescales its weights inside forward.

    ## What it does

    Finds `nn.Embedding(.., max_norm=1.0)`, `nn.EmbeddingBag(.., max_norm=..)` and the functional forms, if `max_norm`
    is a number, also one in a dictionary that the function writes down and gives with `**`.

    ## Why it breaks

    Forward renormalises, in place, the rows that the batch looks up (`embedding_renorm_`). Each rank looks up the rows
    of its own batch, so rank 0 and rank 1 rescale different rows: under DDP the replicas drift apart without an error
    (0.87 after two steps); FSDP2 writes the gathered copy and is 1.7 off a single-process run; FSDP1 raises. Measured
    on 2 x H200 (NCCL, torch 2.11) and gloo (torch 2.13).

    ## Example

    ```python
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(32, 8, max_norm=0.5)  # <- DDP202
            self.fc = nn.Linear(8, 1)

        def forward(self, tokens):
            return self.fc(self.embed(tokens))
    ```

    ## Use instead

    ```python
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(32, 8)
            self.fc = nn.Linear(8, 1)

        def forward(self, tokens):
            rows = self.embed(tokens)
            norm = rows.norm(dim=-1, keepdim=True)
            return self.fc(rows * (0.5 / norm.clamp(min=0.5)))
    ```

    ## When it is silent

    `max_norm=None`, and a `max_norm` that comes from an argument, because its value is not known. A dictionary that is
    used for anything but `**`, as that may change it.

    ## How to confirm

    `ddp-lint verify model.py`: `embedding_renorm_` on the weight's storage, and the replicas' parameters differ.

    ## Fix safety

    No automatic fix: scaling the rows that were looked up changes the gradient, clamping the table after
    `optimizer.step()` changes the schedule. Both are the same on every rank.

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.Embedding.html
    """

    triggers = Triggers("max_norm", "Embedding", "EmbeddingBag", "embedding", "embedding_bag", file=("torch",))
    oracles = ("write", "parameter")

    def visit_Call(self, node: cst.Call) -> None:
        name = self.module.qualified(node.func)
        position = _LAYERS.get(name, _FUNCTIONS.get(name))
        if position is None:
            return
        limit = argument(node, position, "max_norm")
        given: cst.CSTNode | None = limit
        for arg in node.args if limit is None else ():
            if arg.star == "**":
                limit, given = self._in_dictionary(arg.value), arg
        if isinstance(limit, (cst.Integer, cst.Float)) and given is not None:
            self.report(
                given,
                f"`max_norm={limit.value}` rescales rows in forward: DDP replicas drift apart, FSDP loses it or raises",
                notes=["rank 0 and rank 1 look up different rows"],
                labels=[] if given is limit else [(limit, "the limit")],
                help="scale the rows after the lookup, or clamp the whole table after optimizer.step() on all ranks",
            )

    def _in_dictionary(self, options: cst.BaseExpression) -> cst.BaseExpression | None:
        """The limit in a dictionary of options: ``opts = {"max_norm": 1.0}``, ``dict(max_norm=1.0)``, where the name is
        bound once and used for `**` alone."""
        if isinstance(options, cst.Name):
            bound = self.module.bindings(options)
            if len(bound) != 1 or bound[0].kind != "assign" or bound[0].value is None or bound[0].index:
                return None
            if not self._is_only_spread(options):
                return None
            options = bound[0].value
        if isinstance(options, cst.Dict):
            pairs = [each for each in options.elements if isinstance(each, cst.DictElement)]
            if len(pairs) != len(options.elements):
                return None  # what is spread into it may hold another limit
            found = [each.value for each in pairs if literal_text(each.key) == "max_norm"]
        elif isinstance(options, cst.Call) and called(options) == "dict":
            found = [arg.value for arg in options.args if arg.keyword is not None and arg.keyword.value == "max_norm"]
        else:
            return None
        return found[-1] if found else None

    def _is_only_spread(self, name: cst.Name) -> bool:
        """Whether each use of a name of the function gives what it holds with `**`: no other one can change it."""
        function = self.module.function_of(name)
        uses = [n for n in subtree(function) if isinstance(n, cst.Name) and n.value == name.value] if function else []
        above = [self.module.parent(use) for use in uses]
        others = [up for up in above if not (isinstance(up, cst.Arg) and up.star == "**")]
        return len(others) == 1 and isinstance(others[0], cst.AssignTarget)
