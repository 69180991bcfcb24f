"""The intermediate representation, and the state of a lowering."""
