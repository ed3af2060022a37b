/** The settings of the broker that are in force: what differs from the default, where a value comes from, how to change it. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../../vendor/lit-html-3.3.3/directives/live.js';
import { api } from '../../app/api.js';
import { bytes, count, duration } from '../../app/format.js';
import { replaceQuery } from '../../app/router.js';
import { addTexts, hasText, t, translated } from '../../app/text.js';
import { copyBlock } from '../../ui/copy.js';
import { icon } from '../../ui/icon.js';
import { problem } from '../../ui/notice.js';
import { badge, card, factList, pageHead } from '../../ui/parts.js';
import { table } from '../../ui/table.js';
import { CHINESE } from './settings-meanings.text.js';
import texts from './settings.text.js';

addTexts(texts);

export function page({ query, update, signal }) {
  const state = {
    search: query.get('search') ?? '',
    onlyChanged: query.get('changed') === 'yes',
    settings: null,
    error: null,
    opened: null,
  };

  async function load() {
    try {
      const reply = await api.get('/settings', {}, { signal });
      Object.assign(state, { settings: reply.settings, error: null });
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      state.error = error.isAway && state.settings ? null : error;
    }
    update();
  }

  function show(changes) {
    Object.assign(state, changes);
    replaceQuery({ search: state.search, changed: state.onlyChanged ? 'yes' : '' });
    update();
  }

  const isChanged = (setting) => setting.value !== setting.default;

  const meaning = (setting) => translated(setting.meaning, CHINESE[setting.name]);

  function isShown(setting) {
    const words = `${setting.name} ${meaning(setting)} ${setting.meaning}`.toLowerCase();
    return (!state.onlyChanged || isChanged(setting)) && words.includes(state.search.trim().toLowerCase());
  }

  // ---------------------------------------------------------------- a setting

  /** Return a value for readers: durations and sizes with their units. */
  function shown(name, value) {
    if (value === null || value === '') {
      return html`<span class="soft">${t('settings.none')}</span>`;
    }
    if (typeof value === 'boolean') {
      return t(value ? 'ui.yes' : 'ui.no');
    }
    if (typeof value === 'number') {
      const text = name.endsWith('_ms') ? duration(value / 1000) : name.endsWith('_bytes') ? bytes(value) : count(value);
      return html`<span title=${value}>${text}</span>`;
    }
    return html`<code>${value}</code>`;
  }

  const origin = (setting) => html`<span
    >${badge(t(`settings.origin.${setting.origin}`), setting.origin === 'default' ? 'neutral' : 'good')}
    ${setting.place ? html`<code class="soft place">${setting.place}</code>` : nothing}</span
  >`;

  const columns = () => [
    {
      title: t('settings.name'),
      cell: (setting) => html`<span class="setting"
        ><button class="quiet small disclosure" aria-expanded=${state.opened === setting.name} @click=${() => toggle(setting)}>
          ${icon(state.opened === setting.name ? 'down' : 'right')}<code>${setting.name}</code>
        </button>
        <span class="setting-meaning">${meaning(setting)}</span></span
      >`,
    },
    {
      title: t('settings.value'),
      cell: (setting) => html`<span class=${isChanged(setting) ? 'changed' : ''}>${shown(setting.name, setting.value)}</span>`,
    },
    {
      title: t('settings.default'),
      cell: (setting) => html`<span class="soft">${isChanged(setting) ? shown(setting.name, setting.default) : t('settings.same')}</span>`,
    },
    { title: t('ui.origin'), cell: origin },
  ];

  function toggle(setting) {
    state.opened = state.opened === setting.name ? null : setting.name;
    update();
  }

  /** Return the allowed values; a range has the units of the reader, other values have the broker's words. */
  function allowed(setting) {
    const range = /^a whole number from (\d+) to (\d+)/.exec(setting.allowed);
    if (range) {
      const [low, high] = [range[1], range[2]].map((value) => shown(setting.name, Number(value)));
      return html`${low} – ${high}`;
    }
    const words = { 'true or false': 'settings.allowed.switch', text: 'settings.allowed.text', 'a path': 'settings.allowed.path' };
    return setting.allowed in words ? t(words[setting.allowed]) : html`<code>${setting.allowed}</code>`;
  }

  /** Return a value as it stands in the TOML file. */
  const toml = (value) => (typeof value === 'string' ? JSON.stringify(value) : String(value));

  function detail(setting) {
    const example = setting.value ?? setting.default ?? t('settings.example-path');
    const variable = `CMQD_${setting.name.toUpperCase()}`;
    const flag = `--${setting.name.replaceAll('_', '-')}`;
    return html`<div class="setting-detail">
      ${factList([[t('settings.allowed'), allowed(setting)]])}
      <p class="hint">${t(['log_level', 'tls_certificate', 'tls_key'].includes(setting.name) ? 'settings.reload' : 'settings.restart')}</p>
      <div class="setting-ways">
        ${copyBlock(`[${setting.section}]\n${setting.name} = ${toml(example)}`, t('settings.in-file'))}
        ${copyBlock(`${variable}=${example}`, t('settings.as-variable'))}
        ${copyBlock(`cmqd serve ${typeof example === 'boolean' ? `--${example ? '' : 'no-'}${flag.slice(2)}` : `${flag} ${example}`}`, t('settings.as-flag'))}
      </div>
    </div>`;
  }

  // ---------------------------------------------------------------- view

  function sections() {
    const found = state.settings.filter(isShown);
    if (found.length === 0) {
      return html`<section class="card"><div class="empty">
        <p>${state.search ? t('settings.none-found', { search: state.search }) : t('settings.none-changed')}</p>
      </div></section>`;
    }
    return [...new Set(found.map((setting) => setting.section))].map((section) =>
      card(
        hasText(`settings.section.${section}`) ? t(`settings.section.${section}`) : section,
        table({
          label: t('settings.of-section', { section }),
          columns: columns(),
          rows: found.filter((setting) => setting.section === section),
          rowKey: (setting) => setting.name,
          detail: (setting) => (setting.name === state.opened ? detail(setting) : nothing),
        }),
      ),
    );
  }

  const toolbar = () => html`<div class="toolbar" role="search">
    <input
      type="search" aria-label=${t('settings.search')} placeholder=${t('settings.search')} autocomplete="off"
      .value=${live(state.search)} @input=${(event) => show({ search: event.target.value })}
    />
    <label class="inline-check"
      ><input type="checkbox" .checked=${live(state.onlyChanged)} @change=${(event) => show({ onlyChanged: event.target.checked })} />
      ${t('settings.only-changed', { n: count(state.settings.filter(isChanged).length) })}</label
    >
  </div>`;

  load();
  addEventListener('cmqd:back', load, { signal });

  return {
    title: () => t('settings.title'),
    view: () => html`<div class="page settings">
      ${pageHead({ title: t('settings.title') })}
      <p class="hint">${t('settings.intro')}</p>
      ${problem(state.error)}
      ${state.settings === null ? (state.error ? nothing : html`<p class="loading" aria-busy="true">${t('ui.loading')}</p>`) : html`${toolbar()} ${sections()}`}
    </div>`,
  };
}
