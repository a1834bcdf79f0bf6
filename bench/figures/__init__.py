"""The figures of `make bench`, a module per family: each function measures and adds to the table."""
