"""The options of curl that the pages use, for machines without curl: run as ``curl``."""

import sys
import urllib.error
import urllib.request


def main(arguments: list[str]) -> int:
    method, url, body = None, "", None
    headers: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        if argument == "-X":
            method = next(rest)
        elif argument == "-H":
            name, _, value = next(rest).partition(": ")
            headers[name] = value
        elif argument == "-d":
            body = next(rest).encode()
        elif argument not in ("-sS", "--fail-with-body"):
            url = argument
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request) as response:
            sys.stdout.write(response.read().decode())
    except urllib.error.HTTPError as error:
        sys.stdout.write(error.read().decode())
        return 22
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
