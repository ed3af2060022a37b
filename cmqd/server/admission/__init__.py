"""Admission and fairness: the memory, rates and turns that clients may take, and the refusals above them."""
