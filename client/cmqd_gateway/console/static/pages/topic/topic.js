/** The page of a topic: its subscriptions, the tester of their filters, and the deliveries of its messages. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { count, relativeTime, time } from '../../app/format.js';
import { limits } from '../../app/limits.js';
import { href, navigate, replaceQuery } from '../../app/router.js';
import { can } from '../../app/session.js';
import { addTexts, t } from '../../app/text.js';
import { attributeFact, choiceText } from '../../ui/attributes.js';
import { icon } from '../../ui/icon.js';
import { problem } from '../../ui/notice.js';
import { badge, figure, pageHead } from '../../ui/parts.js';
import { tabs } from '../../ui/tabs.js';
import { deleteTopic, editTopic } from './topic-forms.js';
import { openPublishDialog } from './topic-publish.js';
import { createReport } from './topic-report.js';
import { createSubscriptions } from './topic-subscriptions.js';
import { createTester } from './topic-tester.js';
import texts from './topic.text.js';

addTexts(texts);

const REFRESH_MS = 3_000;
const VIEWS = ['subscriptions', 'tester', 'report'];

export function page({ params, query, update, signal, every }) {
  const name = params.topic;
  const path = `/topics/${segment(name)}`;
  const state = { topic: null, declared: null, error: null, isMissing: false, view: VIEWS.includes(query.get('view')) ? query.get('view') : VIEWS[0] };

  async function load() {
    try {
      state.declared ??= await limits('TopicAttributes');
      Object.assign(state, { topic: await api.get(path, {}, { signal }), error: null, isMissing: false });
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      if (error.code === 'topic_not_found') {
        Object.assign(state, { topic: null, isMissing: true });
      } else if (!error.isAway || state.topic === null) {
        state.error = error;
      }
    }
    update();
  }

  function choose(view) {
    state.view = view;
    replaceQuery({ view: view === VIEWS[0] ? '' : view });
    update();
    // A view that is not shown is not refreshed.
    shown().refresh();
  }

  const shown = () => ({ subscriptions, tester, report })[state.view];

  function showReport(id) {
    choose('report');
    report.show(id);
  }

  const subscriptions = createSubscriptions({
    topicName: name, path, query, update, signal,
    onChange() {
      load();
      tester.refresh();
    },
    onReport: showReport,
  });
  const tester = createTester({ path, query, update, signal, onPublish: (labels) => publish(labels) });
  const report = createReport({ path, query, update, signal });

  function publish(labels = '') {
    openPublishDialog({ topic: state.topic, labels, signal, onPublished: refresh, onReport: showReport });
  }

  async function refresh() {
    await Promise.all([load(), shown().refresh()]);
  }

  const actions = () => html`
    ${can('send') ? html`<button class="primary" @click=${() => publish()}>${icon('send')}${t('topic.publish')}</button>` : nothing}
    ${can('manage')
      ? html`<button @click=${async () => (await editTopic(state.topic, signal)) && load()}>${icon('edit')}${t('ui.edit')}</button>
          <button @click=${async () => (await deleteTopic(state.topic, signal)) && navigate(href('topics'))}>
            ${icon('trash')}${t('ui.delete')}
          </button>`
      : nothing}
  `;

  const figures = ({ subscriptions: number, retained, oldest_message_time: oldest, attributes, create_time: created }) => html`<section
    class="card"
  >
    <div class="figures">
      ${figure(t('topic.subscriptions'), count(number))}
      ${figure(t('ui.waiting-messages'), count(retained), t('topic.waiting-note'))}
      ${figure(t('ui.oldest'), oldest ? relativeTime(oldest) : '–', oldest ? time(oldest) : t('topic.no-oldest'))}
      ${Object.keys(state.declared)
        .filter((each) => each !== 'filter_type' && attributes[each] !== undefined)
        .map((each) => figure(...attributeFact(state.declared, each, attributes[each])))}
      ${figure(t('ui.created'), relativeTime(created), time(created))}
    </div>
  </section>`;

  function content() {
    if (state.isMissing) {
      return html`<section class="card">
        <div class="empty">
          <h2>${t('topic.missing')}</h2>
          <p>${t('topic.missing-text')}</p>
          <a class="button" href=${href('topics')}>${t('topic.back')}</a>
        </div>
      </section>`;
    }
    const { topic } = state;
    return html`${problem(state.error)}
    ${topic === null
      ? nothing
      : html`${figures(topic)}
          <div>
            ${tabs({
              id: 'topic',
              label: t('topic.views'),
              chosen: state.view,
              onChoose: choose,
              tabs: [
                { name: 'subscriptions', title: t('topic.subscriptions'), view: () => subscriptions.view(topic) },
                { name: 'tester', title: t('topic.tester'), view: () => tester.view(topic) },
                { name: 'report', title: t('topic.report'), view: () => report.view() },
              ],
            })}
          </div>`}`;
  }

  load();
  every(REFRESH_MS, refresh);
  addEventListener('cmqd:back', refresh, { signal });

  return {
    title: () => name,
    view: () => html`<div class="page topics-page">
      ${pageHead({
        title: name,
        crumbs: [{ text: t('ui.topics'), href: href('topics') }],
        badges: state.topic ? badge(choiceText('filter_type', state.topic.attributes.filter_type)) : nothing,
        actions: state.topic ? actions() : nothing,
      })}
      ${content()}
    </div>`,
  };
}
