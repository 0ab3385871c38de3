"""The house rules: what every file of the project keeps to, the counts of its structure, and random mutations."""
