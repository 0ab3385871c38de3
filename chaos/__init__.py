"""Real processes under real faults, watched from outside."""
