"""Studies one question of raftlog each: growth, overload, pauses, years of writes."""
