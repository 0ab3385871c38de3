"""Tests of changes of the members: configurations, learners, versions."""
