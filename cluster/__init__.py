"""Runs the service: the only package with asyncio, files, sockets and clocks."""
