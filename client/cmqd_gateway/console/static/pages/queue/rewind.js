/**
 * The dialog that rewinds a queue: a time within the possible range, and the exact number of messages that come back.
 *
 * Each choice of a time asks the broker, which counts to the millisecond; nothing is estimated here. Only the last
 * choice is shown: an answer to an earlier one is dropped.
 */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../../vendor/lit-html-3.3.3/directives/live.js';
import { api, segment } from '../../app/api.js';
import { count, duration, time } from '../../app/format.js';
import { addTexts, t } from '../../app/text.js';
import { copyBlock } from '../../ui/copy.js';
import { openDialog } from '../../ui/dialog.js';
import { problem } from '../../ui/notice.js';
import { toast } from '../../ui/toast.js';
import texts from './rewind.text.js';

addTexts(texts);

const PAUSE_MS = 150;
const STEPS = 1_000;
const AGES_S = [300, 3_600, 21_600, 86_400];

/**
 * Open the dialog.
 *
 * @param queue name of the queue.
 * @param signal the signal of the page; closes the dialog.
 * @returns promise of true if messages came back.
 */
export async function openRewindDialog({ queue, signal }) {
  const path = `/queues/${segment(queue)}/rewind`;
  /** `range` is the first preview: the whole window; `chosen` the time in ms, null = the start of the window. */
  const state = { range: null, preview: null, chosen: null, error: null, hasWindow: true, isCounting: false, isBusy: false };
  let asking = new AbortController();
  let timer = 0;
  let dialog = null;
  const draw = () => dialog?.update();

  async function ask() {
    asking.abort();
    asking = new AbortController();
    const { signal: mine } = asking;
    const query = state.chosen === null ? {} : { time: new Date(state.chosen).toISOString() };
    state.isCounting = true;
    draw();
    try {
      const preview = await api.get(path, query, { signal: mine });
      state.range ??= preview;
      Object.assign(state, { preview, error: null });
    } catch (error) {
      if (mine.aborted) {
        return;
      }
      state.hasWindow = !(error.code === 'time_not_rewindable' && error.details.nearest == null && !state.range);
      Object.assign(state, { error, preview: null });
    }
    state.isCounting = false;
    draw();
  }

  function choose(chosen) {
    const [low, high] = bounds(state.range);
    state.chosen = chosen === null ? null : Math.min(Math.max(chosen, low), high);
    state.isCounting = true;
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE_MS);
    draw();
  }

  async function rewind(event) {
    event.preventDefault();
    state.isBusy = true;
    draw();
    try {
      const start = state.chosen ?? Date.parse(state.range.earliest);
      // The start of the window moves on while the dialog is open: not strict, or that choice would be refused.
      const { messages } = await api.post(path, { time: new Date(start).toISOString(), strict: false });
      toast(t('rewind.done', { n: count(messages), one: messages === 1 }));
      dialog.close(true);
    } catch (error) {
      Object.assign(state, { error, isBusy: false });
      draw();
    }
  }

  const body = ({ close }) => {
    if (!state.hasWindow) {
      return noWindow(queue, close);
    }
    if (state.range === null) {
      return state.error ? problem(state.error) : html`<p class="loading" aria-busy="true">${t('ui.loading')}</p>`;
    }
    if (state.range.messages === 0) {
      return html`<p>${t('rewind.nothing')}</p>
        <p class="soft">${t('rewind.nothing-text')}</p>
        <div class="actions"><button type="button" @click=${() => close()}>${t('ui.close')}</button></div>`;
    }
    const messages = state.preview?.messages ?? 0;
    return html`<form @submit=${rewind} novalidate>
      <p class="soft">${t('rewind.text')}</p>
      ${picker(state, choose)}
      ${problem(state.error)}
      <div class="rewind-preview ${state.isCounting ? 'counting' : ''}" role="status" aria-busy=${state.isCounting}>
        ${state.preview === null
          ? nothing
          : html`<p class="figure-value">${t('rewind.count', { n: count(messages), one: messages === 1 })}</p>
              <p class="soft">${t('rewind.since', { time: time(state.chosen ?? bounds(state.range)[0]) })}</p>`}
      </div>
      <div class="actions">
        <button type="button" @click=${() => close()}>${t('ui.cancel')}</button>
        <button
          type="submit" class="primary" aria-busy=${state.isBusy}
          ?disabled=${state.isBusy || state.isCounting || messages === 0}
        >
          ${t('rewind.button')}
        </button>
      </div>
    </form>`;
  };

  dialog = openDialog({ title: () => t('rewind.title', { queue }), body, signal });
  ask();
  const result = await dialog.closed;
  asking.abort();
  clearTimeout(timer);
  return result === true;
}

/** Return the earliest and the latest time, in ms, between which a choice makes a difference. */
export function bounds({ earliest, latest, oldest }) {
  const high = Date.parse(latest);
  const first = Math.max(Date.parse(earliest), oldest === null ? 0 : Date.parse(oldest));
  return [Math.min(first, high), high];
}

function picker(state, choose) {
  const [low, high] = bounds(state.range);
  const chosen = state.chosen ?? low;
  if (high - low < 1000) {
    return html`<p>${t('rewind.one-time', { time: time(high) })}</p>`;
  }
  const now = Date.now();
  const ages = AGES_S.filter((age) => now - age * 1000 > low && now - age * 1000 < high);
  return html`
    <div class="field">
      <label for="rewind-time">${t('rewind.time')}</label>
      <input
        id="rewind-time" type="datetime-local" step="1" required aria-describedby="rewind-range"
        min=${localText(low)} max=${localText(high)} .value=${live(localText(chosen))}
        @change=${(event) => {
          const picked = new Date(event.target.value).getTime();
          choose(Number.isNaN(picked) ? chosen : picked);
        }}
      />
      <input
        type="range" class="rewind-slider" min="0" max=${STEPS} step="1" aria-label=${t('rewind.slider')}
        aria-valuetext=${time(chosen)} .value=${live(String(Math.round(((chosen - low) / (high - low)) * STEPS)))}
        @input=${(event) => choose(Number(event.target.value) === 0 ? null : low + ((high - low) * Number(event.target.value)) / STEPS)}
      />
      <p class="rewind-ends"><span>${time(low)}</span><span>${time(high)}</span></p>
      <p class="hint" id="rewind-range">${t('rewind.range')}</p>
    </div>
    <div class="rewind-choices" role="group" aria-label=${t('rewind.choices')}>
      <button type="button" class="small" aria-pressed=${state.chosen === null} @click=${() => choose(null)}>${t('rewind.all')}</button>
      ${ages.map(
        (age) => html`<button type="button" class="small" @click=${() => choose(Date.now() - age * 1000)}>
          ${t('rewind.ago', { time: duration(age) })}
        </button>`,
      )}
    </div>
  `;
}

function noWindow(queue, close) {
  return html`<p>${t('rewind.off')}</p>
    <p class="soft">${t('rewind.off-text')}</p>
    ${copyBlock(`cmq queue set ${queue} --rewind 1d`, t('ui.command'))}
    <div class="actions"><button type="button" @click=${() => close()}>${t('ui.close')}</button></div>`;
}

/** Return a time in ms as the value of an input for local times, to the second. */
export function localText(milliseconds) {
  const date = new Date(milliseconds);
  const two = (number) => String(number).padStart(2, '0');
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}T${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}
