"""Makes load on a server: closed loops, open loops, streams, followers."""
