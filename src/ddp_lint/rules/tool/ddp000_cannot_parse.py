from ddp_lint.rules.base import Documented


class CannotParse(Documented):
    """The file is not valid Python, so no rule has looked at it.

    ## What it does

    Reports a file that cannot be parsed, at the place where the parser failed. The other files are checked as usual.
    The rule is always on, independent of the selection, because a file that could not be checked must not look clean.
    A file without anything that an active rule looks for is not parsed and not reported. `--ignore DDP000` or
    `per-file-ignores` turn it off, for instance for templates.

    ## Example

    ```python
    def train(model:
        model.train()
    ```

    ## What to do

    Fix the syntax. Python 2 code cannot be checked. Syntax newer than the Python that runs ddp-lint is read by
    LibCST; if it is newer than the installed LibCST, upgrade that.
    """
