"""A browser before the console of a broker: rig, the list of pages, and the Chromium."""
