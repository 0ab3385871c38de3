"""Tests of elections: votes, stability, transfer."""
