"""Shows the whole job once, on real input."""
