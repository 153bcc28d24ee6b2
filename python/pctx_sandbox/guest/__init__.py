"""The part of the package that runs inside a box. Standard library only; the host imports the shared modules too."""

# True in a Worker and nowhere else: there every sandboxed function is a plain one.
INSIDE = False
