"""Operations: a class for every verb or theme, made from the parts below the class, without facts of its own."""
