"""The consensus machine: values in, values out."""
