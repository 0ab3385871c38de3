"""Tests of users, roles, tokens and of what they allow."""
