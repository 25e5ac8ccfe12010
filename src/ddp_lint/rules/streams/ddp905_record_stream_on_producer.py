from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.rules.base import Rule
from ddp_lint.rules.streams.stream import enters_stream, side_stream
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants

_DEPTH = 3  # of methods that call one another inside the block


class RecordStreamOnProducer(Rule):
    """record_stream is called with the stream that produced the tensor, which has no effect.

    ## What it does

    Finds `t.record_stream(torch.cuda.current_stream())` inside `with torch.cuda.stream(side):` for a tensor that is
    made inside the same block, or in a method that its class calls only from such blocks. Also `t.record_stream(main)`
    in such a block for a tensor and a stream from before it: `main = torch.cuda.current_stream()`.

    ## Why it breaks

    The allocator already knows the stream that a tensor was made on. `record_stream` must name the other stream that
    uses it; inside the block `current_stream()` is the side stream itself. When the tensor is freed its memory is
    reused while the main stream still reads it: wrong values on one rank, dependent on timing. Measured on 2 x H200: a
    tensor used on another stream without record_stream gave a wrong sum in 7 of 8 tries.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    side = torch.cuda.Stream()


    def load():
        main = torch.cuda.current_stream()
        with torch.cuda.stream(side):
            x = torch.ones(1 << 24, device=device)
            x.record_stream(torch.cuda.current_stream())  # <- DDP905
        main.wait_stream(side)
        total = x.sum()
        del x
        with torch.cuda.stream(side):
            torch.zeros(1 << 24, device=device)
        dist.all_reduce(total)
        return total.item()


    print(dist.get_rank(), load())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    side = torch.cuda.Stream()


    def load():
        main = torch.cuda.current_stream()
        with torch.cuda.stream(side):
            x = torch.ones(1 << 24, device=device)
            x.record_stream(main)
        main.wait_stream(side)
        total = x.sum()
        del x
        with torch.cuda.stream(side):
            torch.zeros(1 << 24, device=device)
        dist.all_reduce(total)
        return total.item()


    print(dist.get_rank(), load())

    dist.destroy_process_group()
    ```

    ## When it is silent

    A tensor that was made outside the block and is recorded on the block's stream; one that was made inside it and is
    recorded on a stream that was looked up before it.

    ## How to confirm

    `ddp-lint verify train.py --device cuda` follows launches, events and waits, and names two accesses to one memory
    that nothing orders, whether or not the first happened to finish in time.

    ## Fix safety

    No automatic fix: look the consuming stream up before the block.

    ## References

    - https://pytorch.org/docs/stable/generated/torch.Tensor.record_stream.html
    """

    triggers = Triggers("record_stream")
    oracles = ("streams",)
    needs_cuda = True
    confidence = Confidence.MEDIUM

    def visit_Call(self, node: cst.Call) -> None:
        tensor, _, method = dotted(node.func).rpartition(".")
        if method != "record_stream" or len(node.args) != 1 or not tensor:
            return
        stream = node.args[0].value
        if not isinstance(stream, cst.Call):
            self._visit_named(node, tensor, stream)
            return
        if not _looks_up(stream):
            return
        block = self._block_around(node)
        function = self.module.function_of(node)
        made_in = block if block is not None else function
        if block is None and function is not None:
            block = self._block_of_callers(function)
        if block is None or made_in is None or not self._made_before(tensor, node, made_in.body):
            return
        self.report(
            node,
            f"`{tensor}` is recorded on the stream that made it: its memory is reused while another one reads it",
            notes=["inside the block current_stream() is the stream that made it"],
            labels=[(block.items[0], "current_stream() is this stream here")],
            help="look the consuming stream up before the block and record that one",
        )

    def _visit_named(self, node: cst.Call, tensor: str, stream: cst.BaseExpression) -> None:
        """Report the stream that was current before the block, for a tensor that was made before it, too."""
        block, looked_up = self._block_around(node), self.module.assignments(stream)
        if block is None or not looked_up or not all(map(_looks_up, looked_up)):
            return
        value = node.func.value if isinstance(node.func, cst.Attribute) else stream
        made = [binding.node for binding in self.module.bindings(value)]
        if not made or any(block in self.module.ancestors(each) for each in (*looked_up, *made)):
            return
        self.report(
            node,
            f"`{tensor}` is recorded on the stream that made it: its memory is reused while another one reads it",
            notes=["the block uses it on another stream, which the allocator does not wait for"],
            labels=[(looked_up[0], "the stream that made it"), (block.items[0], "the stream that uses it")],
            help="record the stream of the block",
        )

    def _block_around(self, node: cst.CSTNode) -> cst.With | None:
        for up in self.module.ancestors(node):
            if isinstance(up, cst.FunctionDef):
                return None
            if isinstance(up, cst.With) and any(self._enters(item.item) for item in up.items):
                return up
        return None

    def _enters(self, context: cst.BaseExpression) -> bool:
        return enters_stream(self.module, context) or bool(side_stream(self.module, context))

    def _block_of_callers(self, method: cst.FunctionDef, depth: int = _DEPTH) -> cst.With | None:
        """The block that a method runs in, where every call of it in its class is in one."""
        owner = self.module.class_of(method)
        name = f"self.{method.name.value}"
        nodes = descendants(owner) if owner is not None and depth else ()
        calls = [n for n in nodes if isinstance(n, cst.Call) and dotted(n.func) == name]
        blocks = [self._block_around(call) or self._block_around_caller(call, depth) for call in calls]
        return blocks[0] if blocks and all(blocks) else None

    def _block_around_caller(self, call: cst.Call, depth: int) -> cst.With | None:
        caller = self.module.function_of(call)
        return self._block_of_callers(caller, depth - 1) if caller is not None else None

    def _made_before(self, tensor: str, use: cst.Call, body: cst.BaseSuite) -> bool:
        """Whether the tensor is computed above the use; what is merely fetched was made somewhere else."""
        for node in descendants(body):
            if node is use:
                return False
            if isinstance(node, cst.Assign) and dotted(node.targets[0].target) == tensor:
                return isinstance(node.value, (cst.Call, cst.BinaryOperation))
        return False


def _looks_up(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Call) and dotted(value.func).endswith("current_stream")
