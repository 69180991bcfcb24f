"""Lower bound on the time of a task, from counted work and measured ceilings."""
