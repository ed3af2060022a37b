/** Code and values that are ready to copy. */

import { html, nothing } from '../vendor/lit-html-3.3.3/lit-html.js';
import { addTexts, t } from '../app/text.js';
import { toast } from './toast.js';
import texts from './ui.text.js';

addTexts(texts);

/** Copy a text. Browsers offer the clipboard to HTTPS and to this machine only; elsewhere a selection is copied. */
export async function copyText(text) {
  let isCopied = true;
  if (navigator.clipboard) {
    isCopied = await navigator.clipboard.writeText(text).then(() => true, () => false);
  } else {
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'visually-hidden';
    (document.querySelector('dialog[open]') ?? document.body).append(area);
    area.select();
    isCopied = document.execCommand('copy');
    area.remove();
  }
  toast(t(isCopied ? 'ui.copied' : 'ui.not-copied'));
}

/** Return a block of code with a button that copies it; `label` names the block, such as `Python`. */
export function copyBlock(code, label = '') {
  return html`<div class="code">
    ${label ? html`<p class="code-label">${label}</p>` : nothing}
    <pre tabindex="0"><code>${code}</code></pre>
    <button type="button" class="quiet small copy" @click=${() => copyText(code)}>
      ${t('ui.copy')}<span class="visually-hidden"> ${label || code}</span>
    </button>
  </div>`;
}

/** Return a value in one line with a button that copies it. */
export function copyValue(value) {
  return html`<span class="copy-value"
    ><code>${value}</code
    ><button type="button" class="quiet small" @click=${() => copyText(value)}>
      ${t('ui.copy')}<span class="visually-hidden"> ${value}</span>
    </button></span
  >`;
}
