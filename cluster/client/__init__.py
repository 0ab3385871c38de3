"""Talks to a cluster for a program: requests and decisions as values, which an asyncio and a blocking client carry out.

Programs import the clients from `raftlog`.
"""
