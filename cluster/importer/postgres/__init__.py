"""The changes of PostgreSQL tables as a source: decoder, values, connection, snapshot file, source."""
