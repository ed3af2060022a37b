"""The rules of the console's front end that a browser would show only on the page concerned."""

import re
from collections.abc import Iterator
from pathlib import Path

from support.cases import each_case

STATIC = Path(__file__).resolve().parents[3] / "client" / "cmqd_gateway" / "console" / "static"
MODULES = sorted(path for path in STATIC.rglob("*.js") if "vendor" not in path.parts)
STYLES = sorted(path for path in STATIC.rglob("*.css") if "vendor" not in path.parts)
TEXT_ENTRY = re.compile(r"^  '([\w.-]+)': \[", re.MULTILINE)
CHINESE = re.compile("[\u4e00-\u9fff]")


def named(path: Path) -> str:
    return str(path.relative_to(STATIC))


def imports(module: Path) -> Iterator[str]:
    yield from re.findall(r"^(?:import|export)[^;]*?from '([^']+)';", module.read_text(), re.MULTILINE)
    yield from re.findall(r"^import '([^']+)';", module.read_text(), re.MULTILINE)
    yield from re.findall(r"import\('([^']+)'\)", module.read_text())


def declared_texts() -> dict[str, Path]:
    keys: dict[str, Path] = {}
    for module in MODULES:
        if module.name.endswith(".text.js"):
            for key in TEXT_ENTRY.findall(module.read_text()):
                assert key not in keys, f"{key} is declared in {named(module)} and in {named(keys[key])}"
                keys[key] = module
    return keys


@each_case("module", MODULES, ids=named)
def test_imports_name_files_of_the_console(module: Path) -> None:
    for name in imports(module):
        assert name.startswith("."), f"{named(module)} imports {name}, which no server of this console has"
        assert (module.parent / name).is_file(), f"{named(module)} imports {name}, which is missing"


@each_case("module", MODULES, ids=named)
def test_templates_have_no_inline_style_or_script(module: Path) -> None:
    # The policy of the pages forbids both, and a browser drops them without a word on the page.
    assert not re.search(r"\sstyle=|<style|<script|\son(click|load|input|submit|change)=", module.read_text())


@each_case("file", [*MODULES, *STYLES, STATIC / "index.html"], ids=named)
def test_no_file_names_another_site(file: Path) -> None:
    # Names of XML and of examples in texts are no requests.
    sites = set(re.findall(r"https?://([\w.-]+)", file.read_text())) - {"www.w3.org", "127.0.0.1", "localhost"}
    assert not {site for site in sites if not site.endswith(("example.com", "example"))}
    assert "@import" not in file.read_text()


def test_every_page_has_its_file_and_its_name() -> None:
    pages = re.findall(r"\{ path: '([^']*)', file: '([^']+)'([^}]*)\}", (STATIC / "app" / "shell.js").read_text())
    assert len(pages) > 5
    texts = declared_texts()
    for path, file, rest in pages:
        assert (STATIC / "pages" / f"{file}.js").is_file()
        if "group:" in rest:
            assert f"shell.page.{path or 'overview'}" in texts


def test_each_text_has_both_languages() -> None:
    for module in MODULES:
        if not module.name.endswith(".text.js"):
            continue
        for part in re.split(r"^  '", module.read_text(), flags=re.MULTILINE)[1:]:
            key, _, entry = part.partition("'")
            forms = re.findall(r"'((?:[^'\\]|\\.)*)'|`((?:[^`\\]|\\.)*)`", entry)
            words = [first or second for first, second in forms]
            if not CHINESE.search(entry):
                # A name that is the same in both languages is given twice.
                assert len(words) == 2, f"{named(module)}: {key} has one language"
                assert words[0] == words[1], f"{named(module)}: {key} is not translated"


def test_texts_are_declared_and_used() -> None:
    declared = declared_texts()
    used: set[str] = set()
    prefixes: set[str] = set()
    for module in MODULES:
        if module.name.endswith(".text.js"):
            continue
        content = module.read_text()
        literals = re.findall(r"(?<![\w.])t\(\s*'([\w-]+\.[\w.-]+)'", content)
        for key in literals:
            assert key in declared, f"{named(module)} uses the text {key}, which is missing"
        # Keys that are passed on as values, for example in a table of columns.
        used.update(literals, (key for key in re.findall(r"'([\w.-]+)'", content) if key in declared))
        prefixes.update(re.findall(r"`([\w.-]+\.)\$\{", content))
    unused = [key for key in declared if key not in used and not key.startswith(tuple(prefixes))]
    assert not unused, f"texts that no page uses: {unused}"


def test_a_name_of_a_page_in_the_address_is_no_page_of_another() -> None:
    paths = re.findall(r"\{ path: '([^']*)'", (STATIC / "app" / "shell.js").read_text())
    assert len(set(paths)) == len(paths)
