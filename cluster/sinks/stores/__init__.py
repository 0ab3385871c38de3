"""The stores that a sink can write into, one module each."""
