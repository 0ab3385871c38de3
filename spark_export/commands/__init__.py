"""Defines the commands of the command line that use Spark."""
