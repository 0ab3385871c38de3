"""Defines the commands of the command line."""
