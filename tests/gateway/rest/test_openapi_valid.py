"""The OpenAPI document is valid by the schema of OpenAPI 3.1. Not for the lowest versions: see ``tests/parts.py``.

The validator is imported by the tests, because each worker of pytest imports the modules of all tests.
"""

import pytest

from cmqd_gateway.rest import openapi


def test_the_document_is_valid():
    from openapi_spec_validator import OpenAPIV31SpecValidator

    OpenAPIV31SpecValidator(openapi.build()).validate()


def test_the_validator_finds_faults():
    from openapi_spec_validator import OpenAPIV31SpecValidator
    from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

    document = openapi.build()
    del document["info"]["title"]

    with pytest.raises(OpenAPIValidationError):
        OpenAPIV31SpecValidator(document).validate()
