from ddp_lint.rules.base import Documented


class RuleCrashed(Documented):
    """A rule failed on this file: a defect of ddp-lint, not of your code.

    ## What it does

    Names the rule that raised an exception and the exception. That rule's findings in this file are incomplete; all
    other rules and files were checked as usual, and the run continues.

    ## What to do

    Report it with the file, or the smallest part of it that shows the failure. Until it is fixed, `--ignore DDP001`
    hides the finding, and ignoring the named rule for the file (`per-file-ignores`) avoids it.
    """
