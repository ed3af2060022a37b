/** Errors and notices in words. */

import { html, nothing } from '../vendor/lit-html-3.3.3/lit-html.js';
import { addTexts, hasText, t } from '../app/text.js';
import texts from './ui.text.js';

addTexts(texts);

/** Errors with a text of their own in place of the broker's sentence, which names an operation of the protocol. */
const WHOLE = new Set(['no_reply', 'permission_denied']);

/** Return the sentence of an error: the console's own text in the reader's language, else the sentence of the broker. */
export function problemText(error) {
  const key = `ui.problem.${error.code}`;
  if (WHOLE.has(error.code)) {
    return t(key);
  }
  return error.code && hasText(key) ? `${t(key)} ${error.message}` : error.message;
}

/** Return a notice for an error, or nothing. Announced by screen readers. */
export function problem(error) {
  return error ? html`<p class="banner error" role="alert">${problemText(error)}</p>` : nothing;
}

/** Return a notice with a text or template; kinds: `info`, `warning`, `error`, `good`. */
export function notice(kind, content) {
  return html`<div class="banner ${kind}">${content}</div>`;
}
