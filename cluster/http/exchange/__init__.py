"""Carries one HTTP request and its answer: the call, the query, the body, the stream."""
