"""Encrypts connections and names their ends: certificates, and the TLS contexts that are made of them."""
