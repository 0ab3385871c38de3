"""Plants mutants of disks and of what a node keeps on them."""
