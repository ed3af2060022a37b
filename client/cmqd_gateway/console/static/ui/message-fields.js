/** Fields of messages that are sent by hand: the dedup id, and headers as text with a line `name: value` for each. */

import { addTexts, t } from '../app/text.js';
import { areaField, textField } from './form.js';
import texts from './ui.text.js';

addTexts(texts);

/** Return the field of the headers; a form checks it with `headersFault`. */
export const headersField = (form) =>
  areaField({ form, name: 'headers', label: t('ui.headers'), hint: t('ui.headers-hint'), rows: 2, code: true });

/** Return the field of the dedup id. */
export const dedupField = (form, { maxLength } = {}) =>
  textField({ form, name: 'dedup_id', label: t('ui.dedup'), hint: t('ui.dedup-hint'), maxlength: maxLength });

/** Return headers as typed: `[{ line, header, value }]`; `header` is null for a line without a colon. */
function headerLines(text) {
  return text
    .split('\n')
    .map((typed, index) => ({ typed: typed.trim(), line: index + 1 }))
    .filter(({ typed }) => typed !== '')
    .map(({ typed, line }) => {
      const colon = typed.indexOf(':');
      return colon < 1
        ? { line, header: null, value: '' }
        : { line, header: typed.slice(0, colon).trim(), value: typed.slice(colon + 1).trim() };
    });
}

/** Return the headers of a text. */
export const headersOf = (text) => Object.fromEntries(headerLines(text).map(({ header, value }) => [header, value]));

/** Return the text of headers. */
export const headersText = (headers) => Object.entries(headers).map(([name, value]) => `${name}: ${value}`).join('\n');

/** Return the fault of a text of headers, by field. */
export function headersFault(text) {
  const names = new Set();
  for (const { line, header } of headerLines(text)) {
    if (header === null) {
      return { headers: t('ui.headers-wrong', { line }) };
    }
    if (names.has(header)) {
      return { headers: t('ui.headers-double', { line, name: header }) };
    }
    names.add(header);
  }
  return {};
}
