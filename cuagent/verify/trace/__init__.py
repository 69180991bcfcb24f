"""Facts read from the operators that one forward of the reference runs."""
