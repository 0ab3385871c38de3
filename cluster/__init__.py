"""The running service: everything that touches files, sockets and clocks."""
