"""The error of a module whose extra is not installed."""


def missing_extra(module: str, extra: str, missing: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error of an import that names the extra to install; raise it ``from None``."""
    library = (missing.name or "").partition(".")[0]
    return ModuleNotFoundError(f"{module} needs {library}: pip install 'cmqd[{extra}]'", name=missing.name)
