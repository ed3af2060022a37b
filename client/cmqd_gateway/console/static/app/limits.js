/** Ranges and defaults of fields, from the OpenAPI document of the JSON API: its types are their only declaration. */

import { api } from './api.js';

let loading = null;

function document() {
  loading ??= api.get('/openapi.json').catch((error) => {
    loading = null;
    throw error;
  });
  return loading;
}

/**
 * Return the fields of a schema by name: `{ minimum, maximum, default, maxLength, ... }`.
 *
 * @param schema name of a type of the JSON API, such as `QueueAttributes`.
 * @throws ApiError
 */
export async function limits(schema) {
  const { properties } = (await document()).components.schemas[schema];
  return Object.fromEntries(Object.entries(properties).map(([name, field]) => [name, flat(field)]));
}

/** Return the range of a field of `limits` as options of a field of a form. */
export const rangeOf = ({ minimum, maximum }) => ({ minimum, maximum });

/** Join a field that may be null with its only other form; the range of the field is narrower than that of its type. */
function flat(field) {
  const forms = (field.anyOf ?? field.oneOf ?? []).filter((form) => form.type !== 'null');
  const own = forms.length === 1 ? { ...forms[0], ...field } : field;
  // Named so because generators of clients require a field of a request that has a plain default.
  return 'x-default' in own ? { ...own, default: own['x-default'] } : own;
}
