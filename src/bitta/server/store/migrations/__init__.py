"""Steps from one schema to the next, run by `migrate`."""
