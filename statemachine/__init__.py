"""What the log means: a pure, deterministic key-value state machine over committed entries."""
