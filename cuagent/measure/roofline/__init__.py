"""Lower bound on the time of a task: counted work over the device's measured highest rates."""
