"""What happened to a job that died, read from what it left behind: logs, Flight Recorder dumps, stack dumps."""
