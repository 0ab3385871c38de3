"""Simulates clients, and judges what they were answered."""
