"""Checks terms, votes, leaders and the members that count."""
