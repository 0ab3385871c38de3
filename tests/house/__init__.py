"""The house rules: what every file of the project keeps to, and the counts of its structure."""
