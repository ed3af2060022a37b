"""Operations: one class for each verb or theme. They take the parts that they need, and keep no facts."""
