"""Pages as tests read them, and the measure of prose."""
