"""Replies on their way out: outcomes of the core, and the gate that holds replies until their rows are durable."""
