from ddp_lint.rules.base import Documented


class UnusedSuppression(Documented):
    """A comment suppresses a finding that does not exist.

    ## What it does

    Reports `# noqa: DDP...` and `# ddp-lint: ignore[...]` comments, and codes in them, that suppressed nothing in this
    run, codes in them that no rule has, and ddp-lint comments with wrong syntax. Codes of other tools in a `# noqa`
    list and a bare `# noqa` are not reported. A code whose rule did not run (it is off by default, or was not
    selected) is not reported.

    ## Why it matters

    A suppression outlives the code that it was written for. When the hazard comes back on that line, it is not
    reported.

    ## Example

    ```python
    loss = criterion(model(x), y)  # noqa: DDP301
    ```

    ## Use instead

    ```python
    loss = criterion(model(x), y)
    ```

    ## Fix safety

    Safe: `--fix` removes the codes that are not needed, or the whole comment. A reason written after the brackets goes
    with it.
    """
