/** The field of a search that waits until the reader has stopped typing. */

import { html } from '../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../vendor/lit-html-3.3.3/directives/live.js';

const PAUSE_MS = 250;

/**
 * Return a function of a label that draws the field. `state.search` is the text without spaces around it.
 *
 * A search typed just before the page is left must not change the address of the next page, so the signal of the page
 * cancels `onPause`.
 */
export function createSearch(signal, state, onPause) {
  let typed = '';
  let timer = 0;
  signal.addEventListener('abort', () => clearTimeout(timer));
  return (label) => html`<input
    type="search" aria-label=${label} placeholder=${label} autocomplete="off" spellcheck="false" maxlength="128"
    .value=${live(typed.trim() === state.search ? typed : state.search)}
    @input=${(event) => {
      typed = event.target.value;
      state.search = typed.trim();
      clearTimeout(timer);
      timer = setTimeout(onPause, PAUSE_MS);
    }}
  />`;
}
