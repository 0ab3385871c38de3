"""What the log means: a pure state machine that applies entries and yields their effects."""
