/** Icons as inline SVG, drawn in the colour of the text. Decoration only: a control needs a text beside its icon. */

import { html, svg } from '../vendor/lit-html-3.3.3/lit-html.js';

const PATHS = {
  overview: svg`<path d="M3 13h4l2-7 4 12 2-5h6"/>`,
  queue: svg`<path d="M4 6h16M4 12h16M4 18h10"/>`,
  topic: svg`<circle cx="5" cy="12" r="2"/><path d="M7 11l9-5M7 12h10M7 13l9 5"/><circle cx="19" cy="5" r="1.5"/><circle cx="20" cy="12" r="1.5"/><circle cx="19" cy="19" r="1.5"/>`,
  dead: svg`<path d="M4 7l8 6 8-6M4 7v11h16V7z"/><path d="M4 7h16"/>`,
  half: svg`<circle cx="12" cy="12" r="8"/><path d="M12 4v16"/><path d="M12 8h5M12 12h7M12 16h5"/>`,
  history: svg`<path d="M4 12a8 8 0 103-6M4 4v4h4"/><path d="M12 8v4l3 2"/>`,
  schedule: svg`<circle cx="12" cy="12" r="8"/><path d="M12 7v5l3 3"/>`,
  connection: svg`<path d="M9 12h6M7 8H6a4 4 0 000 8h1M17 8h1a4 4 0 010 8h-1"/>`,
  key: svg`<circle cx="8" cy="12" r="4"/><path d="M12 12h9M18 12v3"/>`,
  audit: svg`<path d="M6 3h9l4 4v14H6z"/><path d="M9 11h6M9 15h6"/>`,
  storage: svg`<ellipse cx="12" cy="6" rx="8" ry="3"/><path d="M4 6v12c0 1.700 3.600 3 8 3s8-1.300 8-3V6M4 12c0 1.700 3.600 3 8 3s8-1.300 8-3"/>`,
  settings: svg`<path d="M4 7h9M17 7h3M4 17h3M11 17h9"/><circle cx="15" cy="7" r="2"/><circle cx="9" cy="17" r="2"/>`,
  menu: svg`<path d="M4 7h16M4 12h16M4 17h16"/>`,
  leave: svg`<path d="M10 5H5v14h5M14 8l4 4-4 4M18 12H9"/>`,
  plus: svg`<path d="M12 5v14M5 12h14"/>`,
  close: svg`<path d="M6 6l12 12M18 6L6 18"/>`,
  refresh: svg`<path d="M19 8a8 8 0 10.500 6M19 4v4h-4"/>`,
  search: svg`<circle cx="11" cy="11" r="6"/><path d="M16 16l4 4"/>`,
  send: svg`<path d="M4 12l16-7-6 15-3-6z"/>`,
  up: svg`<path d="M7 14l5-5 5 5"/>`,
  down: svg`<path d="M7 10l5 5 5-5"/>`,
  right: svg`<path d="M10 7l5 5-5 5"/>`,
  pause: svg`<path d="M9 6v12M15 6v12"/>`,
  play: svg`<path d="M8 5l11 7-11 7z"/>`,
  trash: svg`<path d="M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13"/>`,
  rewind: svg`<path d="M11 6l-7 6 7 6zM20 6l-7 6 7 6z"/>`,
  edit: svg`<path d="M5 19l1-4L16 5l3 3L9 18z"/>`,
  warning: svg`<path d="M12 4l9 16H3zM12 10v4M12 17v.500"/>`,
  good: svg`<path d="M5 13l4 4 10-10"/>`,
};

/** Return an icon by name. */
export function icon(name) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">${PATHS[name]}</svg>`;
}
