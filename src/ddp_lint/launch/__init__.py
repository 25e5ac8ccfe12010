"""How a program is launched: which code several ranks run, which of it one rank alone, which processes it starts."""
