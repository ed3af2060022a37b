/** Tabs with the keys of the ARIA pattern: arrows, Home and End. */

import { html } from '../vendor/lit-html-3.3.3/lit-html.js';

/**
 * Return the row of tabs and the panel of the chosen one.
 *
 * @param label name of the row for screen readers.
 * @param tabs `[{ name, title, view() }]`.
 */
export function tabs({ id, label, tabs: all, chosen, onChoose }) {
  const index = Math.max(0, all.findIndex((tab) => tab.name === chosen));
  const onKey = (event) => {
    const moves = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: all.length - 1 };
    if (event.key in moves) {
      event.preventDefault();
      const next = (moves[event.key] + all.length) % all.length;
      onChoose(all[next].name);
      event.currentTarget.children[next].focus();
    }
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} @keydown=${onKey}>
      ${all.map(
        (tab, number) => html`<button
          role="tab" id=${`${id}-tab-${tab.name}`} aria-selected=${number === index} aria-controls=${`${id}-panel`}
          tabindex=${number === index ? 0 : -1} @click=${() => onChoose(tab.name)}
        >${tab.title}</button>`,
      )}
    </div>
    <div role="tabpanel" id=${`${id}-panel`} aria-labelledby=${`${id}-tab-${all[index].name}`}>${all[index].view()}</div>`;
}
