"""Decides, as pure values, what a node does with requests and what nodes send each other."""
