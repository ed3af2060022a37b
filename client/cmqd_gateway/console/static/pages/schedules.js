/** Schedules: messages that the broker sends at the times of a cron expression. */

import { html, nothing } from '../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../app/api.js';
import { count, relativeTime, shortTime, time, visible } from '../app/format.js';
import { can } from '../app/session.js';
import { addTexts, t } from '../app/text.js';
import { copyValue } from '../ui/copy.js';
import { confirmAction, formDialog } from '../ui/dialog.js';
import { areaField, checkField, textField } from '../ui/form.js';
import { icon } from '../ui/icon.js';
import { problem } from '../ui/notice.js';
import { badge, emptyState, factList, pageHead, queueLink } from '../ui/parts.js';
import { createSearch } from '../ui/search.js';
import { pager, table } from '../ui/table.js';
import { toast } from '../ui/toast.js';
import { BodyContent } from '../ui/body-content.js';
import { bodyState, bodyView } from '../ui/body-view.js';
import { headersFault, headersField, headersOf, headersText } from '../ui/message-fields.js';
import { headersView } from './queue/queue-message.js';
import texts from './schedules.text.js';

addTexts(texts);

const LOAD_MS = 5_000;
const SHOWN = 50;
/** Fields of the form that refusals are about. */
const FIELDS = {
  queue_not_found: 'queue', schedule_exists: 'schedule', message_too_large: 'body',
};

export function page({ update, signal, every }) {
  const state = { list: null, error: null, search: '', offset: 0, opened: new Map() };
  let latest = 0;

  async function load() {
    const number = (latest += 1);
    try {
      const list = await api.get('/schedules', { search: state.search, offset: state.offset, limit: SHOWN }, { signal });
      // The answer to an earlier search or page must not replace the answer to a later one.
      if (number !== latest) {
        return;
      }
      Object.assign(state, { list, error: null });
    } catch (error) {
      if (signal.aborted || number !== latest) {
        return;
      }
      state.error = error.isAway && state.list !== null ? null : error;
    }
    update();
  }

  addEventListener('cmqd:back', load, { signal });
  every(LOAD_MS, async () => {
    await load();
    await Promise.all([...state.opened.keys()].map(loadDetails));
  });
  load();

  const searchField = createSearch(signal, state, () => {
    state.offset = 0;
    load();
  });

  // ------------------------------------------------------------------ details

  async function loadDetails(name) {
    let info;
    try {
      info = await api.get(`/schedules/${segment(name)}`, {}, { signal });
    } catch (error) {
      if (error.code === 'schedule_not_found') {
        state.opened.delete(name);
        update();
        return;
      }
      throw error;
    }
    const opened = state.opened.get(name);
    if (opened === undefined) {
      return;
    }
    const isSame = opened.info?.body === info.body && opened.info.encoding === info.encoding;
    state.opened.set(name, { info, body: isSame ? opened.body : bodyState(new BodyContent(info.body, info.encoding)) });
    update();
  }

  async function toggle(name) {
    if (state.opened.delete(name)) {
      update();
    } else {
      state.opened.set(name, { info: null, body: null });
      update();
      await loadDetails(name);
    }
  }

  function detailView(name) {
    const { info, body } = state.opened.get(name);
    if (info === null) {
      return html`<p class="loading" aria-busy="true">${t('ui.loading')}</p>`;
    }
    return html`<div class="message">
      ${factList([
        [t('schedules.fired'), count(info.fired)],
        [t('schedules.last-fired'), info.last_fired_time === null ? t('schedules.never') : time(info.last_fired_time)],
        info.last_message_id === null ? null : [t('schedules.last-message'), copyValue(info.last_message_id)],
        info.last_error === null ? null : [t('schedules.last-error'), html`${visible(info.last_error)} <span class="soft">${time(info.last_error_time)}</span>`],
        info.create_time === null ? null : [t('ui.created'), time(info.create_time)],
        info.modify_time === null ? null : [t('ui.changed'), time(info.modify_time)],
      ])}
      ${headersView(info.headers)}
      ${bodyView({ state: body, update, label: `${t('schedules.body')} ${name}` })}
    </div>`;
  }

  // ------------------------------------------------------------------ actions

  async function setPaused({ name, paused }) {
    await api.patch(`/schedules/${segment(name)}`, { paused: !paused });
    toast(t(paused ? 'schedules.resumed-toast' : 'schedules.paused-toast', { name }));
    await load();
  }

  async function remove({ name }) {
    const isDone = await confirmAction({
      title: t('schedules.delete-title', { name }),
      text: t('schedules.delete-text'),
      button: t('ui.delete'),
      name,
      signal,
      action: () => api.delete(`/schedules/${segment(name)}`),
    });
    if (isDone) {
      state.opened.delete(name);
      toast(t('schedules.deleted-toast', { name }));
      await load();
    }
  }

  async function create() {
    const info = await openScheduleDialog({ schedule: null, signal });
    if (info) {
      const values = { name: info.name, time: info.next_time === null ? '' : relativeTime(info.next_time) };
      toast(t(info.paused ? 'schedules.created-paused-toast' : 'schedules.created-toast', values));
      await load();
    }
  }

  async function edit({ name }) {
    const schedule = await api.get(`/schedules/${segment(name)}`, {}, { signal });
    if (await openScheduleDialog({ schedule, signal })) {
      toast(t('schedules.saved-toast', { name }));
      await load();
      if (state.opened.has(name)) {
        await loadDetails(name);
      }
    }
  }

  // ------------------------------------------------------------------ view

  function view() {
    const { list } = state;
    const isEmpty = list !== null && list.total === 0 && state.search === '';
    const button = can('manage')
      ? html`<button class="primary" @click=${create}>${icon('plus')}${t('schedules.create')}</button>`
      : nothing;
    return html`<div class="page listed">
      ${pageHead({ title: t('schedules.title'), actions: isEmpty ? nothing : button })} ${problem(state.error)}
      ${isEmpty ? emptyView(button) : state.error && list === null ? nothing : listView()}
    </div>`;
  }

  function listView() {
    const { list } = state;
    return html`<section class="card" aria-label=${t('schedules.title')}>
      <div class="toolbar list-search" role="search">${searchField(t('schedules.search'))}</div>
      ${table({
        label: t('schedules.title'),
        rows: list?.schedules ?? null,
        rowKey: ({ name }) => name,
        empty: html`<p class="loading">${t('schedules.none-found')}</p>`,
        columns: [
          { title: t('ui.name'), cell: nameCell },
          { title: t('ui.queue'), cell: queueCell },
          { title: t('schedules.cron'), cell: ({ cron, zone }) => html`<span><code>${cron}</code> <span class="soft">${zone}</span></span>` },
          { title: t('schedules.next'), cell: nextCell },
          { title: t('ui.state'), cell: stateCell },
          { title: t('schedules.missed'), align: 'end', cell: ({ missed, last_error: why }) => html`<span title=${why ?? nothing}>${count(missed)}</span>` },
          ...(can('manage') ? [{ title: t('ui.actions'), cell: actionsCell, isActions: true }] : []),
        ],
        detail: ({ name }) => (state.opened.has(name) ? detailView(name) : nothing),
      })}
      ${list === null
        ? nothing
        : pager({
            offset: state.offset,
            limit: SHOWN,
            total: list.total,
            onPage: (offset) => {
              state.offset = offset;
              load();
            },
          })}
    </section>`;
  }

  function nameCell({ name }) {
    return html`<button class="quiet small open-message" aria-expanded=${state.opened.has(name)} @click=${() => toggle(name)}>
      ${icon('right')}<span>${name}</span>
    </button>`;
  }

  function actionsCell(schedule) {
    const hidden = html`<span class="visually-hidden"> ${schedule.name}</span>`;
    return html`<span class="row-actions">
      <button class="small" @click=${() => setPaused(schedule)}>
        ${icon(schedule.paused ? 'play' : 'pause')}${schedule.paused ? t('ui.resume') : t('ui.pause')}${hidden}</button
      >
      <button class="small" @click=${() => edit(schedule)}>${t('ui.edit')}${hidden}</button>
      <button class="small" @click=${() => remove(schedule)}>${t('ui.delete')}${hidden}</button>
    </span>`;
  }

  return { title: () => t('schedules.title'), view };
}

/** A queue; its name is hidden from keys whose patterns it does not match. */
function queueCell({ queue }) {
  return queue === '(hidden)' ? html`<span class="soft">${queue}</span>` : queueLink(queue);
}

function nextCell({ next_time: next, paused }) {
  if (next === null) {
    return html`<span class="soft">${paused ? '–' : t('schedules.none-next')}</span>`;
  }
  return html`<time class="number" datetime=${next}>${shortTime(next)} <span class="soft">${relativeTime(next)}</span></time>`;
}

function stateCell({ paused, last_error: why }) {
  if (paused) {
    return badge(t('schedules.paused'));
  }
  return html`<span>
    ${badge(t('schedules.running'), 'good')}
    ${why === null ? nothing : html`<span title=${why}>${badge(t('schedules.failing'), 'warning')}</span>`}
  </span>`;
}

function emptyView(button) {
  return html`<section class="card">
    ${emptyState({
      title: t('schedules.empty'),
      text: t('schedules.empty-text'),
      action: button,
      command: "cmq schedule create nightly-report reports '0 3 * * *' 'make the report' --zone Europe/Berlin",
      python:
        'await client.schedules.create("nightly-report", "reports", "0 3 * * *", b"make the report", zone="Europe/Berlin")',
    })}
  </section>`;
}

/** Open the dialog of a new schedule (`schedule` null) or of an existing one; returns a promise of the saved schedule. */
function openScheduleDialog({ schedule, signal }) {
  const isBinary = schedule?.encoding === 'base64';
  return formDialog({
    title: schedule ? t('schedules.edit-title', { name: schedule.name }) : t('schedules.create'),
    signal,
    wide: true,
    values: schedule
      ? { ...schedule, schedule: schedule.name, headers: headersText(schedule.headers) }
      : { schedule: '', queue: '', cron: '', zone: Intl.DateTimeFormat().resolvedOptions().timeZone, body: '', headers: '', paused: false },
    check: ({ headers }) => headersFault(headers),
    fields: (form) => html`<div class="fields">
        ${schedule
          ? nothing
          : textField({ form, name: 'schedule', label: t('ui.name'), hint: t('schedules.name-text'), required: true, maxlength: 64 })}
        ${textField({ form, name: 'queue', label: t('ui.queue'), hint: t('schedules.queue-text'), required: true, maxlength: 64 })}
        ${textField({ form, name: 'zone', label: t('schedules.zone'), hint: t('schedules.zone-text'), required: true })}
      </div>
      ${textField({
        form, name: 'cron', label: t('schedules.cron-label'), hint: t('schedules.cron-text'), required: true, placeholder: '0 9 * * mon-fri',
      })}
      ${areaField({ form, name: 'body', label: t(isBinary ? 'schedules.body-base64' : 'schedules.body'), rows: 5, code: true, required: true })}
      ${headersField(form)}
      ${schedule ? nothing : checkField({ form, name: 'paused', label: t('schedules.paused-label') })}`,
    button: schedule ? t('ui.save') : t('schedules.create'),
    async submit(values) {
      const path = `/schedules/${segment(values.schedule.trim())}`;
      const content = {
        queue: values.queue.trim(), cron: values.cron.trim(), zone: values.zone.trim(), body: values.body,
        headers: headersOf(values.headers), encoding: schedule?.encoding ?? 'utf-8',
      };
      try {
        return schedule
          ? await api.patch(path, changesOf(content, schedule, values.headers))
          : await api.post(path, { ...content, paused: values.paused });
      } catch (error) {
        error.field ??= FIELDS[error.code] ?? null;
        throw error;
      }
    },
  });
}

/** The fields that differ: times that stay the same must not move the next time, nor headers lose spaces unasked. */
function changesOf(content, schedule, typedHeaders) {
  const changes = {};
  for (const name of ['queue', 'cron', 'zone']) {
    if (content[name] !== schedule[name]) {
      changes[name] = content[name];
    }
  }
  if (content.body !== schedule.body) {
    Object.assign(changes, { body: content.body, encoding: content.encoding });
  }
  if (typedHeaders !== headersText(schedule.headers)) {
    changes.headers = content.headers;
  }
  return changes;
}
