"""The error of a module without its extra."""


def missing_extra(module: str, extra: str, missing: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error of an import, with the extra to install; to be raised ``from None``."""
    library = (missing.name or "").partition(".")[0]
    return ModuleNotFoundError(f"{module} needs {library}: pip install 'cmqd[{extra}]'", name=missing.name)
