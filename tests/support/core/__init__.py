"""A broker of the core: builders, facts to compare, invariants, and a naive broker that keeps the same promises."""
