"""Training steps and all-reduces between hosts, which are network namespaces of this machine."""
