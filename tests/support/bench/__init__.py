"""Files of measurements, and the mark of tests that run a load tool for a minute."""
