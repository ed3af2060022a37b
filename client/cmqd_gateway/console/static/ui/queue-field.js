/** The field for the name of a queue of the account. */

import { html } from '../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../vendor/lit-html-3.3.3/directives/live.js';
import { api } from '../app/api.js';
import { t } from '../app/text.js';
import { field } from './form.js';

const SUGGESTED = 20;

/** Return a function that draws the field; an account may have 10,000 queues, so some names are offered for the typed text. */
export function createQueueField(signal) {
  let names = [];

  async function suggest(form, text) {
    try {
      ({ names } = await api.get('/queues', { search: text.trim(), limit: SUGGESTED }, { signal }));
      form.update();
    } catch {
      // Suggestions only: the broker checks the name.
    }
  }

  return ({ form, name, label, hint, except = null }) => {
    form.addCheck(name, (value) => (value.trim() === '' ? t('ui.required') : null));
    return field({
      form, name, label, hint,
      input: ({ id, described, invalid }) => html`<input
          id=${id} name=${name} list=${`${id}-names`} autocomplete="off" spellcheck="false" maxlength="64" required
          aria-describedby=${described} aria-invalid=${invalid} .value=${live(form.values[name])}
          @focus=${(event) => suggest(form, event.target.value)}
          @input=${(event) => {
            form.set(name, event.target.value);
            suggest(form, event.target.value);
          }}
        />
        <datalist id=${`${id}-names`}>
          ${names.filter((each) => each !== except).map((each) => html`<option value=${each}></option>`)}
        </datalist>`,
    });
  };
}
