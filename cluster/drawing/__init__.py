"""Draws pages that need no other file: one style, a way to fill a page, and plots as SVG."""
