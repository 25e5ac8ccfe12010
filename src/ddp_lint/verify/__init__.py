"""`ddp-lint verify`: run the target on two or more ranks and prove or refute each finding.

Only `ddp_lint.verify.child` imports torch, and it runs in processes of its own.
"""
