"""Tests of cluster/security: certificates, and connections with TLS."""
