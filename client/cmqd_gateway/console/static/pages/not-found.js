/** The page of an address that the console does not have. */

import { html } from '../vendor/lit-html-3.3.3/lit-html.js';
import { href } from '../app/router.js';
import { addTexts, t } from '../app/text.js';
import texts from './not-found.text.js';

addTexts(texts);

export function page() {
  return {
    title: () => t('not-found.title'),
    view: () => html`<div class="page">
      <h1 tabindex="-1">${t('not-found.title')}</h1>
      <p>${t('not-found.text')}</p>
      <p><a href=${href('')}>${t('not-found.back')}</a></p>
    </div>`,
  };
}
