"""One observer a file: each installs itself, watches one kind of thing and writes events of its own kinds."""
