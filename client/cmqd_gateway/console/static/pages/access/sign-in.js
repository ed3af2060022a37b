/** The sign-in with a key pair. */

import { html } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { preferences } from '../../app/shell.js';
import { signIn } from '../../app/session.js';
import { addTexts, t } from '../../app/text.js';
import { copyBlock } from '../../ui/copy.js';
import { createForm, secretField, textField } from '../../ui/form.js';
import texts from './sign-in.text.js';

addTexts(texts);

export function page({ update, signedIn }) {
  const form = createForm({
    values: { secret_id: '', secret_key: '' },
    update,
    async submit(values) {
      try {
        await signIn(values);
      } catch (error) {
        if (error.status === 401) {
          throw new Error(t('sign-in.wrong'));
        }
        throw error;
      }
      signedIn();
    },
  });

  /** A pasted pair fills both fields. */
  const split = (value) => {
    const [, id, secret] = /^\s*([^\s:]+):(\S+)\s*$/.exec(value) ?? [];
    if (secret) {
      form.set('secret_id', id);
      form.set('secret_key', secret);
    }
  };

  return {
    title: () => t('sign-in.title'),
    view: () => html`<main class="sign-in">
      <div class="sign-in-card">
        <h1 tabindex="-1"><span class="brand">cmqd</span> ${t('sign-in.title')}</h1>
        <form @submit=${form.onSubmit} novalidate>
          ${form.failure()}
          ${textField({
            form,
            name: 'secret_id',
            label: t('sign-in.id'),
            hint: t('sign-in.id-hint'),
            required: true,
            autocomplete: 'username',
            onInput: split,
          })}
          ${secretField({ form, name: 'secret_key', label: t('sign-in.secret'), required: true })}
          ${form.submitButton(t('sign-in.title'))}
        </form>
        <p class="hint">${t('sign-in.link')}</p>
        ${copyBlock('cmq console --open')}
        <p class="hint">${t('sign-in.where')}</p>
        <p class="hint">${t('sign-in.kept')}</p>
        ${preferences(update)}
      </div>
    </main>`,
  };
}
