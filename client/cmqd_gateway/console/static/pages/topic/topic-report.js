/** The deliveries of a message: the subscriptions that have had it, and the others. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../../vendor/lit-html-3.3.3/directives/live.js';
import { api, segment } from '../../app/api.js';
import { bytes, count, time, visible } from '../../app/format.js';
import { href, replaceQuery } from '../../app/router.js';
import { t } from '../../app/text.js';
import { problem } from '../../ui/notice.js';
import { moment } from '../../ui/parts.js';
import { table } from '../../ui/table.js';
import { deliveryState, labelsOf } from './topic-labels.js';

const ID = /^Msg-[0-9a-f]{16}$/;

const historyLink = (id) => html`<a href=${href('message-history', { message: id })}><code class="message-id">${id}</code></a>`;

/** Make the look-up of messages of a topic. @returns `{ view(), show(id), refresh() }` */
export function createReport({ path, query, update, signal }) {
  const state = { id: query.get('message') ?? '', fault: null, report: null, error: null, isBusy: false };
  let isBegun = false;

  async function load() {
    const id = state.id.trim();
    replaceQuery({ message: id });
    state.fault = ID.test(id) ? null : t('topic.report.wrong');
    if (state.fault) {
      update();
      return;
    }
    await read(id);
  }

  async function read(id) {
    state.isBusy = true;
    update();
    try {
      Object.assign(state, { report: await api.get(`${path}/messages/${segment(id)}/deliveries`, {}, { signal }), error: null });
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      Object.assign(state, { error, report: null });
    }
    state.isBusy = false;
    update();
  }

  const when = (delivery) => moment(delivery.delivered_time ?? delivery.next_attempt_time);

  const columns = () => [
    { title: t('topic.report.subscription'), cell: (row) => row.subscription ?? html`<span class="soft">${t('topic.report.removed')}</span>` },
    { title: t('ui.state'), cell: (row) => deliveryState(row.state) },
    { title: t('topic.sub.endpoint'), cell: (row) => row.endpoint ?? '–' },
    { title: t('topic.message.attempts'), align: 'end', cell: (row) => (row.attempts === null ? '–' : count(row.attempts)) },
    { title: t('topic.report.when'), cell: when },
    { title: t('topic.report.copy'), cell: (row) => (row.copy_id ? historyLink(row.copy_id) : '–') },
    {
      title: t('ui.reason'),
      cell: (row) => (row.drop_reason ? t(`topic.message.reason.${row.drop_reason}`) : visible(row.last_error ?? '–')),
    },
  ];

  return {
    show(id) {
      state.id = id;
      isBegun = true;
      load();
    },
    async refresh() {
      if (state.report !== null && !state.isBusy) {
        // The message that is shown: the field may have another id, half typed.
        await read(state.report.id);
      }
    },
    view() {
      if (!isBegun) {
        isBegun = true;
        if (state.id) {
          load();
        }
      }
      const { report } = state;
      return html`<section class="card">
        <header><h2>${t('topic.report')}</h2></header>
        <div class="stack">
          <p class="soft">${t('topic.report.text')}</p>
          <form
            class="lookup" novalidate
            @submit=${(event) => {
              event.preventDefault();
              load();
            }}
          >
            <div class="field">
              <label for="report-id">${t('topic.report.id')}</label>
              <input
                id="report-id" class="code-input" placeholder="Msg-0000000000000001" autocomplete="off" spellcheck="false"
                aria-invalid=${state.fault ? 'true' : nothing} aria-describedby=${state.fault ? 'report-fault' : nothing}
                .value=${live(state.id)}
                @input=${(event) => {
                  Object.assign(state, { id: event.target.value, fault: null });
                  update();
                }}
              />
              ${state.fault ? html`<p class="fault" id="report-fault">${state.fault}</p>` : nothing}
            </div>
            <button type="submit" ?disabled=${state.isBusy}>${t('topic.report.find')}</button>
          </form>
          ${problem(state.error)}
          ${report === null
            ? nothing
            : html`<p>
                  ${historyLink(report.id)} ${labelsOf(report)}
                  <span class="soft">
                    ${t('topic.report.published', { time: time(report.publish_time), size: bytes(report.size) })}
                  </span>
                </p>
                ${table({ label: t('topic.report'), columns: columns(), rows: report.deliveries, rowKey: (row) => row.subscription ?? row })}`}
        </div>
      </section>`;
    },
  };
}
