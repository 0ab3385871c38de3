"""The log as a Spark table."""
