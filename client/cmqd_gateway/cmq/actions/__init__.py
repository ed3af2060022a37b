"""The actions of API 2.0, a module per subject."""
