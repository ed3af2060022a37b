"""Operations that do more than call the core and answer; all other operations are lines of ``operations``."""
