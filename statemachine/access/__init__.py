"""Holds users, roles and tokens as part of the replicated state, and decides what each principal may do."""
