"""Pages in the form that tests compare, and the measure of prose."""
