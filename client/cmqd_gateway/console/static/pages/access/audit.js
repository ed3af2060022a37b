/** The audit trail: administrative operations, with filters and pages, newest first. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../../vendor/lit-html-3.3.3/directives/live.js';
import { api, segment } from '../../app/api.js';
import { count, relativeTime, time } from '../../app/format.js';
import { href, replaceQuery } from '../../app/router.js';
import { can, isAdmin, session } from '../../app/session.js';
import { addTexts, hasText, t } from '../../app/text.js';
import { icon } from '../../ui/icon.js';
import { problem } from '../../ui/notice.js';
import { badge, emptyState, pageHead } from '../../ui/parts.js';
import { createSearch } from '../../ui/search.js';
import { table } from '../../ui/table.js';
import texts from './audit.text.js';

addTexts(texts);

const PAGE = 50;
const MAX_NEW = 100;
const REFRESH_MS = 5_000;
/** More accounts than this have no choice; the search compares the account too. */
const MAX_CHOICES = 200;
const PERIODS = { hour: 3_600, day: 86_400, week: 604_800, month: 2_592_000, all: null };

/** Operations by group, as the filter shows them. */
const GROUPS = {
  queues: [
    'create_queue', 'ensure_queue', 'set_queue_attributes', 'delete_queue', 'clear_queue', 'rewind_queue', 'start_redrive',
    'cancel_redrive',
  ],
  topics: [
    'create_topic', 'ensure_topic', 'set_topic_attributes', 'delete_topic', 'subscribe', 'ensure_subscription',
    'set_subscription_attributes', 'unsubscribe', 'retry_deliveries', 'drop_deliveries', 'retry_delivery', 'drop_delivery',
    'rotate_secret',
  ],
  schedules: ['create_schedule', 'ensure_schedule', 'set_schedule', 'delete_schedule'],
  accounts: [
    'create_account', 'delete_account', 'create_key', 'create_role_key', 'import_key', 'set_key_roles', 'set_key_enabled',
    'delete_key',
  ],
};

/** Operations on a key: their objects are ids of 36 characters. */
const KEY_OPERATIONS = ['create_key', 'create_role_key', 'import_key', 'set_key_roles', 'set_key_enabled', 'delete_key'];

/** Operations that destroy messages or objects. */
const DESTRUCTIVE = /^(delete|drop|clear)_|^unsubscribe$/;
const CREATING = /^(create|ensure|import)_|^subscribe$/;

function operationText(operation) {
  const key = `audit.op.${operation}`;
  return hasText(key) ? t(key) : operation;
}

/** Return the operation of an entry in words. A key that was disabled and a key that was enabled share an operation. */
function entryText({ operation, changes }) {
  if (operation === 'set_key_enabled') {
    return t(changes === 'enabled=false' ? 'audit.key-disabled' : 'audit.key-enabled');
  }
  return operationText(operation);
}

function operationKind(operation) {
  return DESTRUCTIVE.test(operation) ? 'bad' : CREATING.test(operation) ? 'good' : 'neutral';
}

/** Return the address of the page of an entry's object, or null: it is gone, or belongs to another account. */
function objectPage({ operation, name, account }) {
  if (account !== session.key.account || /^(delete|create_role|import)_/.test(operation)) {
    return null;
  }
  if (/_(queue|redrive|queue_attributes)$/.test(operation)) {
    return href(`queues/${segment(name)}`);
  }
  if (GROUPS.topics.includes(operation)) {
    return href(`topics/${segment(name.split('/')[0])}`);
  }
  return null;
}

export function page({ query, update, signal, every }) {
  const state = {
    search: query.get('search') ?? '',
    operation: query.get('operation') ?? '',
    account: query.get('account') ?? '',
    period: query.get('period') in PERIODS ? query.get('period') : 'all',
    /** `before` of each page on the way to the current page; empty = the newest. */
    path: [],
    rows: null,
    next: null,
    /** Number of entries that came in since the page was read; the reader asks for them, so no row moves by itself. */
    news: 0,
    error: null,
    accounts: [],
  };
  let latest = 0;

  function filter() {
    const seconds = PERIODS[state.period];
    return {
      search: state.search,
      operation: state.operation,
      account: state.account,
      since: seconds === null ? null : new Date(Date.now() - seconds * 1000).toISOString(),
    };
  }

  async function load() {
    const number = (latest += 1);
    try {
      const before = state.path.at(-1);
      const reply = await api.get('/audit', { ...filter(), before, limit: PAGE }, { signal });
      if (number === latest) {
        Object.assign(state, { rows: reply.entries, next: reply.next, news: 0, error: null });
        update();
      }
    } catch (error) {
      failed(error, number);
    }
  }

  /** Count the entries that came in; on an empty page show them at once. */
  async function look() {
    if (state.rows === null || state.path.length > 0 || state.error !== null) {
      return;
    }
    if (state.rows.length === 0) {
      await load();
      return;
    }
    const number = latest;
    const after = state.rows[0].entry_id;
    const reply = await api.get('/audit', { ...filter(), after, limit: MAX_NEW }, { signal });
    if (number === latest && reply.entries.length !== state.news) {
      state.news = reply.entries.length;
      update();
    }
  }

  function failed(error, number) {
    if (signal.aborted || number !== latest) {
      return;
    }
    // The shell says that the broker is away; the rows of before stay.
    state.error = error.isAway && state.rows ? null : error;
    update();
  }

  async function loadAccounts() {
    if (isAdmin() && can('admin')) {
      try {
        state.accounts = (await api.get('/accounts', {}, { signal })).names;
        update();
      } catch {
        // The filter stays without the choice of an account.
      }
    }
  }

  function seek(changes) {
    Object.assign(state, { path: [], ...changes });
    const { search, operation, account, period } = state;
    replaceQuery({ search, operation, account, period: period === 'all' ? '' : period });
    load();
    update();
  }

  const searchField = createSearch(signal, state, () => seek({}));

  const isFiltered = () => Boolean(state.search || state.operation || state.account || state.period !== 'all');

  function turn(path) {
    seek({ path });
    document.querySelector('h1')?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }

  const choice = (name, label, options) => html`<select
    name=${name} aria-label=${label} .value=${live(state[name])} @change=${(event) => seek({ [name]: event.target.value })}
  >
    ${options}
  </select>`;

  const option = (chosen, value, text) => html`<option value=${value} ?selected=${value === chosen}>${text}</option>`;

  const toolbar = () => html`<div class="toolbar" role="search" aria-label=${t('audit.filter')}>
    ${searchField(t('audit.search'))}
    ${choice('operation', t('audit.operation'), [
      option(state.operation, '', t('audit.every-operation')),
      ...Object.entries(GROUPS).map(
        ([group, operations]) => html`<optgroup label=${t(`audit.group.${group}`)}>
          ${operations.map((operation) => option(state.operation, operation, operationText(operation)))}
        </optgroup>`,
      ),
    ])}
    ${state.accounts.length > 1 && state.accounts.length <= MAX_CHOICES
      ? choice('account', t('ui.account'), [
          option(state.account, '', t('audit.every-account')),
          ...state.accounts.map((account) => option(state.account, account, account)),
        ])
      : nothing}
    ${choice('period', t('audit.period'), Object.keys(PERIODS).map((period) => option(state.period, period, t(`audit.period.${period}`))))}
    ${isFiltered()
      ? html`<button class="quiet" @click=${() => seek({ search: '', operation: '', account: '', period: 'all' })}>
          ${t('audit.clear')}
        </button>`
      : nothing}
  </div>`;

  const columns = () => [
    {
      title: t('ui.time'),
      cell: (row) => html`<span class="nowrap" title=${relativeTime(row.time)}>${time(row.time)}</span>`,
    },
    {
      title: t('audit.operation'),
      cell: (row) => html`<span title=${row.operation}>${badge(entryText(row), operationKind(row.operation))}</span>`,
    },
    { title: t('audit.object'), cell: object },
    { title: t('audit.changes'), cell: (row) => (row.changes ? html`<code class="words">${row.changes}</code>` : html`<span class="soft">–</span>`) },
    { title: t('ui.key'), cell: key },
    { title: t('ui.address'), cell: (row) => html`<span><code class="nowrap">${row.peer}</code> <span class="soft nowrap">${row.product}</span></span>` },
  ];

  function object(row) {
    const address = objectPage(row);
    const account = row.account !== session.key.account && row.account !== row.name ? html`<span class="soft">${row.account} / </span>` : nothing;
    const name = address
      ? html`<a href=${address}>${row.name}</a>`
      : KEY_OPERATIONS.includes(row.operation)
        ? html`<code class="short-id" title=${row.name}>${row.name}</code>`
        : row.name;
    return html`<span class="name">${account}${name}</span>`;
  }

  function key(row) {
    const isOwn = row.secret_id === session.key.secret_id;
    return html`<span><button
        class="quiet small id" title=${t('audit.of-key', { key: row.secret_id })}
        @click=${() => seek({ search: row.secret_id })}
      ><code class="short-id">${row.secret_id}</code></button>
      ${isOwn ? html`<span class="soft nowrap">${t('ui.this-key')}</span>` : nothing}
      ${row.by_account !== row.account
        ? html`<span class="soft nowrap">${t('audit.by-admin', { account: row.by_account })}</span>`
        : nothing}</span>`;
  }

  const nothingThere = () =>
    isFiltered()
      ? html`<div class="empty"><p>${t('audit.none-found')}</p></div>`
      : emptyState({
          title: t('audit.empty'),
          text: t('audit.empty-text'),
          command: 'cmq audit list --since 1d\ncmq audit list orders --output json',
          python:
            'page = await client.audit_entries(search="orders", operation="delete_queue")\n' +
            'for entry in page.entries:\n    print(entry.time, entry.operation, entry.name, entry.secret_id, entry.peer)',
        });

  const pages = () =>
    state.path.length === 0 && state.next === null
      ? nothing
      : html`<nav class="pager" aria-label=${t('audit.pages')}>
          ${state.path.length > 1 ? html`<button @click=${() => turn([])}>${t('audit.newest')}</button>` : nothing}
          <button ?disabled=${state.path.length === 0} @click=${() => turn(state.path.slice(0, -1))}>${t('audit.newer')}</button>
          <button ?disabled=${state.next === null} @click=${() => turn([...state.path, state.next])}>${t('audit.older')}</button>
        </nav>`;

  const news = () =>
    html`<div class="news" role="status">
      ${state.news > 0
        ? html`<button class="small" @click=${() => seek({})}>
            ${icon('up')}${t('audit.new', { n: state.news === MAX_NEW ? `${count(MAX_NEW)}+` : state.news })}
          </button>`
        : nothing}
    </div>`;

  load();
  loadAccounts();
  every(REFRESH_MS, look);
  addEventListener('cmqd:back', load, { signal });

  return {
    title: () => t('audit.title'),
    view: () => html`<div class="page">
      ${pageHead({ title: t('audit.title') })}
      <p class="lead">${t('audit.text')}</p>
      ${problem(state.error)}
      <section class="card audit">
        ${state.rows?.length === 0 && !isFiltered() ? nothing : html`<header>${toolbar()}${news()}</header>`}
        ${state.error && state.rows === null
          ? nothing
          : table({
              label: t('audit.table'),
              columns: columns(),
              rows: state.rows,
              rowKey: (row) => row.entry_id,
              empty: nothingThere(),
            })}
        ${pages()}
      </section>
    </div>`,
  };
}
