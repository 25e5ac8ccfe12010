"""The rules, one a file, in a folder a family."""
