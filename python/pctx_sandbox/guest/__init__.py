"""The part of the package that runs inside a box. Standard library only; the host imports the shared modules too."""
