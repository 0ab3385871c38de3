"""Carries requests out for asyncio programs."""
