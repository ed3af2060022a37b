/** Accounts, and the keys of an account with their roles and names. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../../vendor/lit-html-3.3.3/directives/live.js';
import { api, segment } from '../../app/api.js';
import { count, relativeTime, time } from '../../app/format.js';
import { limits } from '../../app/limits.js';
import { href, navigate } from '../../app/router.js';
import { can, isAdmin, session } from '../../app/session.js';
import { addTexts, t } from '../../app/text.js';
import { copyValue } from '../../ui/copy.js';
import { confirmAction } from '../../ui/dialog.js';
import { icon } from '../../ui/icon.js';
import { problem } from '../../ui/notice.js';
import { badge, card, pageHead } from '../../ui/parts.js';
import { table } from '../../ui/table.js';
import { toast } from '../../ui/toast.js';
import { createAccount, createKey, editKey, rolesOf } from './key-forms.js';
import texts from './keys.text.js';

addTexts(texts);

const REFRESH_MS = 10_000;
const SHOWN_ACCOUNTS = 16;
const ADMIN = 'admin';

/** More names than this keep the order of the broker: their comparison would hold up the page. */
const MAX_SORTED = 1_000;
const collator = new Intl.Collator('en', { numeric: true });

export function page({ query, update, signal, every }) {
  const account = isAdmin() ? (query.get('account') ?? session.key.account) : session.key.account;
  const state = { keys: null, declared: null, error: null, accounts: null, search: '' };
  /** The account in the query of requests; an account's own keys need none, and only `admin` may name one. */
  const of = account === session.key.account ? {} : { account };

  /** Return accounts in their order, the chosen account first: it is then among the accounts that are shown. */
  function ordered(names) {
    const others = names.filter((name) => name !== account);
    if (others.length <= MAX_SORTED) {
      others.sort(collator.compare);
    }
    return others.length < names.length ? [account, ...others] : others;
  }

  async function load() {
    try {
      state.declared ??= await limits('SetKeyRoles');
      const [{ keys }, accounts] = await Promise.all([
        api.get('/keys', of, { signal }),
        isAdmin() ? api.get('/accounts', {}, { signal }) : null,
      ]);
      keys.sort((one, other) => one.create_time.localeCompare(other.create_time));
      Object.assign(state, { keys, accounts: accounts && ordered(accounts.names), error: null });
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      state.error = error.isAway && state.keys ? null : error;
    }
    update();
  }

  const isOwn = (key) => key.secret_id === session.key?.secret_id;

  /** Make a request that ends the connections of a key: of this page's own key before the answer, too. */
  async function end(key, request) {
    try {
      await request;
    } catch (error) {
      if (!isOwn(key) || error.status !== 504) {
        throw error;
      }
    }
  }

  async function create() {
    await createKey({ account, of, declared: state.declared, signal });
    load();
  }

  async function edit(key) {
    if (await editKey({ key, account, of, declared: state.declared, signal })) {
      toast(t('keys.changed-toast', { key: key.secret_id }));
      load();
    }
  }

  const warning = (text, key) =>
    html`<p>${text}</p>
      ${isOwn(key) ? html`<p class="banner warning">${t('keys.own-warning')}</p>` : nothing}`;

  async function setEnabled(key, enabled) {
    const action = () => end(key, api.patch(`/keys/${segment(key.secret_id)}`, { enabled }, { query: of }));
    if (enabled) {
      await action();
      toast(t('keys.enabled-toast', { key: key.secret_id }));
    } else {
      const isDone = await confirmAction({
        title: t('keys.disable-title', { key: key.secret_id }),
        text: warning(t('keys.disable-text'), key),
        button: t('keys.disable'),
        signal,
        action,
      });
      if (!isDone) {
        return;
      }
      toast(t('keys.disabled-toast', { key: key.secret_id }));
    }
    load();
  }

  async function remove(key) {
    const isDone = await confirmAction({
      title: t('keys.delete-title', { key: key.secret_id }),
      text: warning(t('keys.delete-text'), key),
      button: t('ui.delete'),
      name: key.secret_id,
      signal,
      action: () => end(key, api.delete(`/keys/${segment(key.secret_id)}`, { query: of })),
    });
    if (isDone) {
      toast(t('keys.deleted-toast', { key: key.secret_id }));
      load();
    }
  }

  async function newAccount() {
    const name = await createAccount(signal);
    if (name) {
      toast(t('keys.account-created', { account: name }));
      navigate(href('keys', { account: name }));
    }
  }

  async function removeAccount() {
    const isDone = await confirmAction({
      title: t('keys.delete-account-title', { account }),
      text: t('keys.delete-account-text'),
      button: t('keys.delete-account'),
      name: account,
      signal,
      action: () => api.delete(`/accounts/${segment(account)}`),
    });
    if (isDone) {
      toast(t('keys.account-deleted', { account }));
      navigate(href('keys'));
    }
  }

  const columns = () => [
    {
      title: t('ui.key'),
      cell: (key) => html`<span>${copyValue(key.secret_id)} ${isOwn(key) ? badge(t('ui.this-key')) : nothing}</span>`,
    },
    {
      title: t('ui.state'),
      cell: (key) => (key.enabled ? badge(t('keys.enabled'), 'good') : badge(t('keys.disabled'), 'warning')),
    },
    {
      title: t('keys.roles'),
      cell: (key) => html`<span class="role-list">
        ${key.roles.map((role) => html`<span title=${t(`keys.role.${role}`)}>${badge(role, role === 'gateway' ? 'warning' : 'neutral')}</span>`)}
      </span>`,
    },
    {
      title: t('keys.names'),
      cell: (key) =>
        key.names.includes('*') ? html`<span class="soft">${t('keys.every-name')}</span>` : html`<code class="patterns">${key.names.join(' ')}</code>`,
    },
    {
      title: t('ui.created'),
      cell: (key) => html`<span class="nowrap" title=${time(key.create_time)}>${relativeTime(key.create_time)}</span>`,
    },
    { title: t('ui.actions'), align: 'end', cell: actions, isActions: true },
  ];

  function actions(key) {
    const named = html`<span class="visually-hidden"> ${key.secret_id}</span>`;
    return html`<span class="row-actions">
      ${can('manage') ? html`<a class="quiet-link" href=${href('audit', { search: key.secret_id })}>${t('keys.history')}${named}</a>` : nothing}
      <button class="quiet small" @click=${() => edit(key)}>${t('keys.edit')}${named}</button>
      <button class="quiet small" @click=${() => setEnabled(key, !key.enabled)}>
        ${key.enabled ? t('keys.disable') : t('keys.enable')}${named}
      </button>
      <button class="quiet small" @click=${() => remove(key)}>${t('ui.delete')}${named}</button>
    </span>`;
  }

  function accounts() {
    const search = state.search.toLowerCase();
    const found = state.accounts.filter((name) => name.toLowerCase().includes(search));
    const rest = found.length - SHOWN_ACCOUNTS;
    return card(
      t('keys.accounts'),
      html`<p class="hint">${t('keys.accounts-text')}</p>
        ${state.accounts.length > SHOWN_ACCOUNTS
          ? html`<div class="toolbar" role="search">
              <input
                type="search" aria-label=${t('keys.search-accounts')} placeholder=${t('keys.search-accounts')} autocomplete="off"
                .value=${live(state.search)}
                @input=${(event) => {
                  state.search = event.target.value.trim();
                  update();
                }}
              />
            </div>`
          : nothing}
        <ul class="account-list">
          ${found
            .slice(0, SHOWN_ACCOUNTS)
            .map((name) => html`<li><a href=${href('keys', { account: name })} aria-current=${name === account ? 'page' : nothing}>${name}</a></li>`)}
        </ul>
        ${found.length === 0 ? html`<p class="soft">${t('keys.no-account')}</p>` : nothing}
        ${rest > 0 ? html`<p class="soft">${t('keys.more-accounts', { n: count(rest) })}</p>` : nothing}`,
      { actions: html`<button @click=${newAccount}>${icon('plus')}${t('keys.create-account')}</button>` },
    );
  }

  const roles = () =>
    card(
      t('keys.roles-card'),
      html`<dl class="facts">
        ${rolesOf(state.declared, account).map(
          (role) => html`<div><dt>${badge(role, role === 'gateway' ? 'warning' : 'neutral')}</dt><dd>${t(`keys.role.${role}`)}</dd></div>`,
        )}
      </dl>`,
    );

  load();
  every(REFRESH_MS, load);
  addEventListener('cmqd:back', load, { signal });

  const title = () => (isAdmin() ? t('keys.title') : t('keys.title-own'));

  return {
    title,
    view: () => html`<div class="page keys">
      ${pageHead({
        title: title(),
        actions: state.declared
          ? html`<button class="primary" @click=${create}>${icon('plus')}${t('keys.create')}</button>`
          : nothing,
      })}
      ${problem(state.error)}
      <div class="stacked">
        ${state.accounts ? accounts() : nothing}
        ${state.error && state.keys === null
          ? nothing
          : card(
              t('keys.of-account', { account }),
              table({ label: t('keys.of-account', { account }), columns: columns(), rows: state.keys, rowKey: (key) => key.secret_id }),
              {
                actions:
                  isAdmin() && account !== ADMIN
                    ? html`<button class="quiet" @click=${removeAccount}>${icon('trash')}${t('keys.delete-account')}</button>`
                    : nothing,
              },
            )}
        ${state.declared ? roles() : nothing}
      </div>
    </div>`,
  };
}
