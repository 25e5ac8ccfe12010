"""The language server: findings for editors, as `ddp-lint server` sends them over standard input and output.

`workplace` checks texts as they are in the editor and keeps what is known of their projects; `messages` puts findings
into the words of the protocol; `server` listens.
"""
