/** The dialogs that create accounts and keys, show a new secret, and change the roles of a key. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../../vendor/lit-html-3.3.3/directives/live.js';
import { api, segment } from '../../app/api.js';
import { brokerUrl } from '../../app/session.js';
import { addTexts, t } from '../../app/text.js';
import { copyBlock, copyValue } from '../../ui/copy.js';
import { formDialog, openDialog } from '../../ui/dialog.js';
import { areaField, nameField } from '../../ui/form.js';
import texts from './keys.text.js';

addTexts(texts);

const PRESETS = {
  producer: ['send'],
  worker: ['send', 'consume'],
  observer: ['read'],
  operator: ['read', 'manage'],
  everything: ['send', 'consume', 'read', 'manage', 'admin'],
};
const PATTERN = /^[A-Za-z0-9_*-]{1,64}$/;

const patternsOf = (text) => text.split(/[\s,]+/).filter(Boolean);

function checkNames(text, limit) {
  const patterns = patternsOf(text);
  if (patterns.length === 0) {
    return t('keys.names-required');
  }
  if (patterns.length > limit) {
    return t('keys.names-limit', { limit });
  }
  const wrong = patterns.find((pattern) => !PATTERN.test(pattern));
  return wrong ? t('keys.names-form', { pattern: wrong }) : null;
}

/** Return a function of the values of the form: the faults of roles and names by field. */
const checkOf = (declared) => ({ roles, names }) => {
  const faults = {
    roles: roles.length === 0 ? t('keys.role-required') : null,
    names: checkNames(names, declared.names.maxItems),
  };
  return Object.fromEntries(Object.entries(faults).filter(([, fault]) => fault));
};

/** Return the roles that a key of an account can have. */
export const rolesOf = (declared, account) => declared.roles.items.enum.filter((role) => role !== 'gateway' || account === 'admin');

const sameRoles = (one, other) => one.length === other.length && one.every((role) => other.includes(role));

/** Return the fields of roles and names. */
function permissionFields(form, declared, account) {
  const { roles } = form.values;
  const offered = rolesOf(declared, account);
  const presets = Object.entries(PRESETS).map(
    ([name, chosen]) => html`<button
      type="button" class="small" aria-pressed=${String(sameRoles(roles, chosen))} @click=${() => form.set('roles', chosen)}
    >${t(`keys.preset.${name}`)}</button>`,
  );
  const toggle = (role, isChosen) => form.set('roles', offered.filter((each) => (each === role ? isChosen : roles.includes(each))));
  const fault = form.errors.roles;
  return html`<fieldset class="choices" aria-describedby=${fault ? `${form.id}-roles-fault` : nothing}>
      <legend>${t('keys.roles')}</legend>
      <div class="presets" role="group" aria-label=${t('keys.preset')}>${presets}</div>
      ${offered.map((role) => {
        const id = `${form.id}-role-${role}`;
        return html`<div class="field check">
          <input
            id=${id} type="checkbox" .checked=${live(roles.includes(role))} aria-describedby=${`${id}-hint`}
            aria-invalid=${fault ? 'true' : nothing} @change=${(event) => toggle(role, event.target.checked)}
          />
          <label for=${id}>${role}</label>
          <p class="hint" id=${`${id}-hint`}>${t(`keys.role.${role}`)}</p>
        </div>`;
      })}
      ${fault ? html`<p class="fault" id=${`${form.id}-roles-fault`}>${fault}</p>` : html`<p class="hint">${t('keys.roles-text')}</p>`}
    </fieldset>
    ${areaField({ form, name: 'names', label: t('keys.names-label'), hint: t('keys.names-hint', { limit: declared.names.maxItems }), rows: 2, code: true })}`;
}

/** Show the secret of a new key, the only time; resolves when the dialog is closed. */
function showSecret({ secret_key: secret, key }, signal) {
  return openDialog({
    title: t('keys.new-title'),
    signal,
    wide: true,
    isKept: true,
    body: ({ close }) => html`<p class="banner warning" role="alert">${t('keys.new-once')}</p>
      <dl class="new-key">
        <dt>${t('keys.secret-id')}</dt>
        <dd>${copyValue(key.secret_id)}</dd>
        <dt>${t('keys.secret-key')}</dt>
        <dd>${copyValue(secret)}</dd>
      </dl>
      <div class="secret-code">${copyBlock(`export CMQ_URL='${brokerUrl(key.secret_id, secret)}'\ncmq key show`, t('ui.command'))}
      ${copyBlock(
        `async with connect("${brokerUrl(key.secret_id, secret)}") as client:\n    print(await client.accounts.own_key())`,
        t('ui.python'),
      )}</div>
      <div class="actions end"><button class="primary" @click=${() => close()}>${t('keys.done')}</button></div>`,
  }).closed;
}

/** Create a key and show its secret. */
export async function createKey({ account, of, declared, signal }) {
  const made = await formDialog({
    title: t('keys.create-title', { account }),
    signal,
    wide: true,
    hasSecret: true,
    values: { roles: PRESETS.worker, names: '*' },
    check: checkOf(declared),
    fields: (form) => permissionFields(form, declared, account),
    button: t('keys.create'),
    submit: ({ roles, names }) => api.post('/keys', { roles, names: patternsOf(names) }, { query: of }),
  });
  if (made) {
    await showSecret(made, signal);
  }
}

/** Change roles and names of a key; true if they were changed. */
export function editKey({ key, account, of, declared, signal }) {
  return formDialog({
    title: t('keys.edit-title'),
    signal,
    wide: true,
    values: { roles: rolesOf(declared, account).filter((role) => key.roles.includes(role)), names: key.names.join('\n') },
    check: checkOf(declared),
    fields: (form) => html`<p class="dialog-text"><code>${key.secret_id}</code></p>
      <p class="dialog-text">${t('keys.edit-text')}</p>
      ${permissionFields(form, declared, account)}`,
    button: t('ui.save'),
    async submit({ roles, names }) {
      await api.put(`/keys/${segment(key.secret_id)}/roles`, { roles, names: patternsOf(names) }, { query: of });
      return true;
    },
  });
}

/** Create an account and show the secret of its first key; the name of the account, or undefined. */
export async function createAccount(signal) {
  const made = await formDialog({
    title: t('keys.create-account'),
    signal,
    hasSecret: true,
    values: { name: '' },
    fields: (form) => nameField({ form, label: t('keys.account-name') }),
    button: t('keys.create-account'),
    submit: ({ name }) => api.post(`/accounts/${segment(name)}`, undefined),
  });
  if (!made) {
    return undefined;
  }
  await showSecret(made, signal);
  return made.key.account;
}
