/** The tester: the subscriptions that would get a message with the labels being typed, and why the others not. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../../vendor/lit-html-3.3.3/directives/live.js';
import { api } from '../../app/api.js';
import { count } from '../../app/format.js';
import { replaceQuery } from '../../app/router.js';
import { can } from '../../app/session.js';
import { t } from '../../app/text.js';
import { icon } from '../../ui/icon.js';
import { problem } from '../../ui/notice.js';
import { badge } from '../../ui/parts.js';
import { pager, table } from '../../ui/table.js';
import { listOf } from './topic-labels.js';

const TYPING_MS = 150;
const PAGE = 25;

const KINDS = { stored: 'good', posted: 'good', no_match: 'neutral', queue_missing: 'bad', queue_full: 'bad', blocked: 'bad' };

/**
 * Make the tester of a topic.
 *
 * @param onPublish called with the labels as text, to publish a message with them.
 * @returns `{ view(topic), refresh() }`; `refresh` tests again, after a change of the subscriptions.
 */
export function createTester({ path, query, update, signal, onPublish }) {
  const state = {
    text: query.get('labels') ?? '',
    isRouting: null,
    result: null,
    /** The words of the routing key that `result` is about. */
    words: [],
    error: null,
    isBusy: false,
    onlyMatches: false,
    offset: 0,
  };
  let timer = 0;
  let pending = null;
  // Labels typed just before the page is left must not change the address of the next page.
  signal.addEventListener('abort', () => clearTimeout(timer));

  async function test() {
    pending?.abort();
    if (state.isRouting && state.text.trim() === '') {
      Object.assign(state, { result: null, error: null, isBusy: false });
      update();
      return;
    }
    const own = (pending = new AbortController());
    signal.addEventListener('abort', () => own.abort(), { signal: own.signal });
    const key = state.text.trim();
    const labels = state.isRouting ? { routing_key: key } : { tags: listOf(state.text) };
    state.isBusy = true;
    try {
      const result = await api.get(`${path}/match`, labels, { signal: own.signal });
      // Matches first; the broker has both parts in order of the names.
      result.subscriptions.sort((one, other) => Number(other.matches) - Number(one.matches));
      Object.assign(state, { result, words: key.split('.'), error: null, isBusy: false });
    } catch (error) {
      if (own.signal.aborted) {
        return;
      }
      // The last result would be read as the answer to the labels that were refused.
      Object.assign(state, { error, isBusy: false, result: error.isAway ? state.result : null });
    }
    update();
  }

  function onInput(event) {
    Object.assign(state, { text: event.target.value, offset: 0 });
    clearTimeout(timer);
    timer = setTimeout(() => {
      replaceQuery({ labels: state.text.trim() });
      test();
    }, TYPING_MS);
    update();
  }

  function results(topic) {
    const { result } = state;
    if (result === null) {
      return state.isRouting && !state.error ? html`<p class="soft">${t('topic.tester.type-key')}</p>` : nothing;
    }
    const total = result.subscriptions.length;
    if (total === 0) {
      return html`<p>${t('topic.tester.none')}</p>`;
    }
    const chosen = result.subscriptions.filter((match) => match.matches || !state.onlyMatches);
    // Fewer rows than before: a filter changed, or the list begins anew.
    const offset = state.offset < chosen.length ? state.offset : 0;
    return html`<div class="tester-result">
        <p role="status" class=${result.matched === 0 ? 'tester-sum none' : 'tester-sum'}>
          <strong>${t('topic.tester.summary', { matched: count(result.matched), total: count(total) })}</strong>
          ${result.matched === 0 ? html`<br />${t('topic.tester.discarded')}` : nothing}
        </p>
        <div class="actions">
          ${total > result.matched && result.matched > 0
            ? html`<label class="inline-check"
                ><input
                  type="checkbox"
                  .checked=${live(state.onlyMatches)}
                  @change=${(event) => {
                    state.onlyMatches = event.target.checked;
                    update();
                  }}
                />${t('topic.tester.only')}</label
              >`
            : nothing}
          ${can('send')
            ? html`<button type="button" @click=${() => onPublish(state.text.trim())}>
                ${icon('send')}${t('topic.tester.publish')}
              </button>`
            : nothing}
        </div>
      </div>
      ${table({
        label: t('topic.tester.results'),
        rows: chosen.slice(offset, offset + PAGE),
        rowKey: (match) => match.subscription,
        columns: [
          { title: t('ui.name'), cell: (match) => html`<strong class=${match.matches ? '' : 'soft'}>${match.subscription}</strong>` },
          {
            title: t('topic.tester.verdict'),
            cell: (match) => badge(t(`topic.tester.fate.${match.fate}`), KINDS[match.fate] ?? 'warning'),
          },
          { title: t('topic.tester.why'), cell: (match) => reasons(match, topic) },
          { title: t('topic.sub.endpoint'), cell: (match) => html`<span class="soft">${match.endpoint}</span>` },
        ],
      })}
      ${pager({
        offset,
        limit: PAGE,
        total: chosen.length,
        onPage(first) {
          state.offset = first;
          update();
        },
      })}`;
  }

  function reasons(match) {
    if (match.filters.length === 0) {
      return html`<span class="soft">${t('topic.tester.every')}</span>`;
    }
    return html`<ul class="verdicts">
      ${match.filters.map(
        (filter) => html`<li class=${filter.matches ? 'yes' : 'no'}>
          ${icon(filter.matches ? 'good' : 'close')}<code class="chip">${filter.text}</code> <span>${reason(filter)}</span>
        </li>`,
      )}
    </ul>`;
  }

  function reason(filter) {
    if (!state.isRouting) {
      return t(filter.matches ? 'topic.tester.tag-yes' : 'topic.tester.tag-no');
    }
    if (filter.matches) {
      return t('topic.tester.key-yes');
    }
    const number = filter.differs_at;
    if (number > state.words.length) {
      return t('topic.tester.key-short');
    }
    const word = state.words[number - 1];
    return word ? t('topic.tester.key-word', { number, word }) : t('topic.tester.key-empty-word', { number });
  }

  return {
    async refresh() {
      if (state.isRouting !== null && !state.isBusy) {
        await test();
      }
    },
    view(topic) {
      if (state.isRouting === null) {
        state.isRouting = topic.attributes.filter_type === 'routing';
        test();
      }
      const kind = state.isRouting ? 'key' : 'tags';
      return html`<section class="card tester" aria-busy=${state.isBusy}>
        <header><h2>${t('topic.tester')}</h2></header>
        <div class="stack">
          <p class="soft">${t('topic.tester.text')}</p>
          <div class="field">
            <label for="tester-labels">${t(`topic.tester.${kind}`)}</label>
            <input
              id="tester-labels" class="code-input" autocomplete="off" spellcheck="false" autocapitalize="off"
              aria-describedby="tester-hint" aria-invalid=${state.error?.field ? 'true' : nothing}
              .value=${live(state.text)} @input=${onInput}
            />
            <p class="hint" id="tester-hint">${t(`topic.tester.${kind}-hint`)}</p>
          </div>
          ${problem(state.error)} ${results(topic)}
        </div>
      </section>`;
    },
  };
}
