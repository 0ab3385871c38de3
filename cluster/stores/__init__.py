"""Object stores: where backups and exports may lie."""
