from __future__ import annotations

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.rules.launch.ddp803_variable_renamed import VariableRenamed
from ddp_lint.rules.triggers import Triggers


class AllocatorVariableRenamed(VariableRenamed):
    """The allocator is configured by the old name of its variable.

    ## What it does

    Finds `PYTORCH_CUDA_ALLOC_CONF`, which torch 2.9 renamed to `PYTORCH_ALLOC_CONF`.

    ## Why it breaks

    It does not break yet: torch reads both names. If both are set to different values (the new name in the job script,
    the old one in the training script), some parts of torch use one and some the other, on rank 0 and rank 1.

    ## Example

    ```python
    import os

    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # <- DDP809

    import torch

    print(torch.cuda.is_available())
    ```

    ## Use instead

    ```python
    import os

    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

    import torch

    print(torch.cuda.is_available())
    ```

    ## When it is silent

    If the file sets the new name as well.

    ## How to confirm

    torch 2.9 and later say so in a warning when the allocator starts. `ddp-lint verify` cannot query which name the
    allocator used and is inconclusive; therefore the rule is off by default.

    ## Fix safety

    Unsafe: torch before 2.9 does not know the new name.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
    """

    confidence = Confidence.LOW
    default = False
    triggers = Triggers(*tuple(table("environment")["renamed_lately"]))
    needs_cuda = True
    renamed = "renamed_lately"
