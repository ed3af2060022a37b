/** The list of topics. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { limits } from '../../app/limits.js';
import { href, navigate, replaceQuery } from '../../app/router.js';
import { can } from '../../app/session.js';
import { addTexts, t } from '../../app/text.js';
import { attributeFact, labelOf } from '../../ui/attributes.js';
import { icon } from '../../ui/icon.js';
import { problem } from '../../ui/notice.js';
import { emptyState, moment, pageHead } from '../../ui/parts.js';
import { createSearch } from '../../ui/search.js';
import { pager, table } from '../../ui/table.js';
import { cellCount, createTopic, deleteTopic, editTopic } from './topic-forms.js';
import texts from './topics.text.js';

addTexts(texts);

const PAGE = 25;
const REFRESH_MS = 5_000;

export function page({ query, update, signal, every }) {
  const state = {
    search: query.get('search') ?? '',
    offset: Number(query.get('offset')) || 0,
    total: 0,
    rows: null,
    declared: null,
    error: null,
  };
  let latest = 0;

  /** Read a page of names, and then the topics of these names: a list has names alone. */
  async function load() {
    const number = (latest += 1);
    try {
      state.declared ??= await limits('TopicAttributes');
      const page = await api.get('/topics', { search: state.search, offset: state.offset, limit: PAGE }, { signal });
      if (page.names.length === 0 && state.offset > 0 && number === latest) {
        // The topics of the last page were deleted.
        state.offset = Math.max(0, state.offset - PAGE);
        return await load();
      }
      const details = await Promise.all(page.names.map((name) => topicOf(name, signal)));
      if (number !== latest) {
        return;
      }
      Object.assign(state, { total: page.total, rows: details.filter(Boolean), error: null });
    } catch (error) {
      if (signal.aborted || number !== latest) {
        return;
      }
      state.error = error.isAway && state.rows ? null : error;
    }
    update();
  }

  function seek(changes) {
    Object.assign(state, changes);
    replaceQuery({ search: state.search, offset: state.offset || '' });
    load();
  }

  const searchField = createSearch(signal, state, () => seek({ offset: 0 }));

  async function create() {
    const name = await createTopic(signal);
    if (name) {
      navigate(href(`topics/${segment(name)}`));
    }
  }

  const columns = () => [
    { title: t('ui.name'), cell: (row) => html`<a href=${href(`topics/${segment(row.name)}`)}>${row.name}</a>` },
    ...Object.keys(state.declared ?? {}).map((name) => ({
      title: labelOf(state.declared, name),
      cell: (row) => attributeFact(state.declared, name, row.attributes[name])[1],
    })),
    { title: t('topics.subscriptions'), align: 'end', cell: (row) => cellCount(row.subscriptions) },
    { title: t('ui.waiting-messages'), align: 'end', cell: (row) => cellCount(row.retained) },
    {
      title: t('ui.oldest'),
      align: 'end',
      cell: (row) => moment(row.oldest_message_time),
    },
    ...(can('manage') ? [{ title: t('ui.actions'), align: 'end', cell: actions, isActions: true }] : []),
  ];

  const actions = (row) => html`<span class="row-buttons">
    <button class="quiet small" @click=${async () => (await editTopic(row, signal)) && load()}>
      ${t('ui.edit')}<span class="visually-hidden"> ${row.name}</span>
    </button>
    <button class="quiet small" @click=${async () => (await deleteTopic(row, signal)) && load()}>
      ${t('ui.delete')}<span class="visually-hidden"> ${row.name}</span>
    </button>
  </span>`;

  const isEmpty = () => state.rows?.length === 0 && state.search === '';

  const nothingThere = () =>
    state.search
      ? html`<div class="empty"><p>${t('topics.none-found', { search: state.search })}</p></div>`
      : emptyState({
          title: t('topics.empty'),
          text: t('topics.empty-text'),
          action: can('manage') ? html`<button class="primary" @click=${create}>${t('topics.create')}</button>` : nothing,
          command: 'cmq topic create shop\ncmq queue create orders\ncmq sub create shop billing --queue orders --filter-tag paid',
          python:
            'shop = await client.ensure_topic("shop")\n' +
            'await shop.subscribe("billing", queue="orders", filter_tags=["paid"], ensure=True)\n' +
            'await shop.publish(b"order 1 was paid", tags=["paid"])',
        });

  load();
  every(REFRESH_MS, load);
  addEventListener('cmqd:back', load, { signal });

  return {
    title: () => t('ui.topics'),
    view: () => html`<div class="page topics-page">
      ${pageHead({
        title: t('ui.topics'),
        actions: can('manage') && !isEmpty()
          ? html`<button class="primary" @click=${create}>${icon('plus')}${t('topics.create')}</button>`
          : nothing,
      })}
      ${problem(state.error)}
      <section class="card">
        ${isEmpty()
          ? nothing
          : html`<header>
              <div class="toolbar" role="search">${searchField(t('ui.search-by-name'))}</div>
            </header>`}
        ${table({ label: t('ui.topics'), columns: columns(), rows: state.rows, rowKey: (row) => row.id, empty: nothingThere() })}
        ${pager({ offset: state.offset, limit: PAGE, total: state.total, onPage: (offset) => seek({ offset }) })}
      </section>
    </div>`,
  };
}

/** Return a topic, or null if it was deleted since its name was read. */
async function topicOf(name, signal) {
  try {
    return await api.get(`/topics/${segment(name)}`, {}, { signal });
  } catch (error) {
    if (error.code === 'topic_not_found') {
      return null;
    }
    throw error;
  }
}
