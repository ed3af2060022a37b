/** Small parts of pages: head, empty state, badge, list of facts, figure. */

import { html, nothing } from '../vendor/lit-html-3.3.3/lit-html.js';
import { segment } from '../app/api.js';
import { relativeTime, time } from '../app/format.js';
import { href } from '../app/router.js';
import { addTexts, t } from '../app/text.js';
import { copyBlock } from './copy.js';
import texts from './ui.text.js';

addTexts(texts);

/** Return the head of a page: `crumbs` `[{ text, href }]` above the heading, `actions` at its end. */
export function pageHead({ title, crumbs = [], actions = nothing, badges = nothing }) {
  return html`<div class="page-head">
    <div>
      ${crumbs.length === 0
        ? nothing
        : html`<p class="crumbs">${crumbs.map((crumb) => html`<a href=${crumb.href}>${crumb.text}</a> / `)}</p>`}
      <h1 tabindex="-1">${title}${badges}</h1>
    </div>
    <div class="actions">${actions}</div>
  </div>`;
}

/**
 * Return the empty state of a page: why there is nothing, and the next step as a command and as code.
 *
 * @param command text for the command line, or null.
 * @param python text of a program, or null.
 */
export function emptyState({ title, text, action = nothing, command = null, python = null }) {
  return html`<div class="empty">
    <h2>${title}</h2>
    <p>${text}</p>
    ${action}
    <div class="empty-code">
      ${command ? copyBlock(command, t('ui.command')) : nothing} ${python ? copyBlock(python, t('ui.python')) : nothing}
    </div>
  </div>`;
}

/** Return a short word about a state; kinds: `neutral`, `good`, `warning`, `bad`, or a state of messages. */
export function badge(text, kind = 'neutral') {
  return html`<span class="badge ${kind}">${text}</span>`;
}

/** Return a moment as its distance from now, with the exact time at hand; `none` stands for null. */
export function moment(text, none = '–') {
  return text === null
    ? html`<span class="soft">${none}</span>`
    : html`<time class="number" datetime=${text} title=${time(text)}>${relativeTime(text)}</time>`;
}

/** Return a link to the page of a queue. */
export const queueLink = (name) => html`<a href=${href(`queues/${segment(name)}`)}>${name}</a>`;

/** Return names and values as a list; `facts` is `[[name, value], ...]`, entries that are null are left out. */
export function factList(facts) {
  return html`<dl class="facts">
    ${facts.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** Return a large figure with its name; `note` is a small text below. */
export function figure(name, value, note = nothing) {
  return html`<div class="figure"><p class="figure-name">${name}</p><p class="figure-value">${value}</p>
    ${note === nothing ? nothing : html`<p class="figure-note">${note}</p>`}</div>`;
}

/** Return a card: a section with a heading. */
export function card(title, content, { actions = nothing } = {}) {
  return html`<section class="card">
    <header><h2>${title}</h2><div class="actions">${actions}</div></header>
    ${content}
  </section>`;
}
