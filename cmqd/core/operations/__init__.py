"""Operations: a class for every verb or theme, made from the parts that it needs, without facts of its own."""
