/** Modal dialogs. The browser keeps the focus inside, closes them with Escape and gives the focus back. */

import { html, nothing, render } from '../vendor/lit-html-3.3.3/lit-html.js';
import { addTexts, t } from '../app/text.js';
import { createForm, textField } from './form.js';
import { icon } from './icon.js';
import { problemText } from './notice.js';
import { toast } from './toast.js';
import texts from './ui.text.js';

addTexts(texts);
let number = 0;

/**
 * Open a dialog.
 *
 * @param title text of its heading.
 * @param body function of `{ close, update }` that returns the content as a template; called at each drawing.
 * @param signal closes the dialog when it aborts: pass the signal of the page.
 * @param isTyped function that returns true while the form has text that a close would lose: Escape and the button in the
 *   corner then ask first.
 * @param isKept the dialog has no button to close it, and Escape does not close it: for a value that is shown once.
 * @returns `{ update, close, closed, outcome }`; `closed` is a promise of the value that `close(value)` got, or undefined.
 *   `outcome` also waits for a form that was submitted before the dialog was closed: its request cannot be taken back,
 *   and its reply may be a secret that is shown once. A failure is a toast then.
 */
export function openDialog({ title, body, signal, wide = false, isKept = false, isTyped = () => false }) {
  const element = document.createElement('dialog');
  const heading = `dialog-${(number += 1)}`;
  element.setAttribute('aria-labelledby', heading);
  element.classList.toggle('wide', wide);
  document.body.append(element);
  let result;
  const close = (value) => {
    result = value;
    element.close();
  };
  // No flag of an open question, which has the focus: the flag would swallow a key between its answer and the event `close`.
  const leave = async () => {
    const isLeft =
      !isTyped() ||
      (await confirmAction({
        title: t('ui.discard-title'),
        text: t('ui.discard-text'),
        button: t('ui.discard'),
        action: async () => {},
        signal,
      }));
    if (isLeft) {
      close();
    }
  };
  const update = () => {
    if (element.isConnected) {
      render(
        html`<header class="dialog-head">
            <h2 id=${heading}>${typeof title === 'function' ? title() : title}</h2>
            ${isKept
              ? nothing
              : html`<button type="button" class="quiet small" @click=${leave}>
                  ${icon('close')}<span class="visually-hidden">${t('ui.close')}</span>
                </button>`}
          </header>
          <div class="dialog-body">${body({ close, update })}</div>`,
        element,
      );
    }
  };
  const closed = new Promise((resolve) => {
    element.addEventListener('close', () => {
      element.remove();
      resolve(result);
    });
  });
  element.addEventListener('cancel', (event) => isKept && event.preventDefault());
  // Not at the event 'cancel': a browser closes the dialog at a second Escape whatever its listeners say.
  element.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && isTyped()) {
      event.preventDefault();
      leave();
    }
  });
  let submitted = null;
  element.addEventListener('cmqd:submitted', ({ detail: running }) => {
    submitted = running;
    running.catch(() => {
      if (element.isConnected) {
        // The form shows the error.
        submitted = null;
      }
    });
  });
  const outcome = async () => {
    await closed;
    try {
      await submitted;
    } catch (error) {
      if (error.name !== 'AbortError') {
        toast(problemText(error));
      }
    }
    return result;
  };
  signal?.addEventListener('abort', () => element.open && element.close());
  update();
  element.showModal();
  return { update, close, closed, outcome: outcome() };
}

/**
 * Open a dialog with a form.
 *
 * @param fields function of the form and of `close` that returns the fields.
 * @param submit async function of the values; the dialog closes with its result, and stays open without one.
 * @param button text of the button that submits, `kind` its class; `cancel` is the text of the other button.
 * @param isTyped function of the values; see `openDialog`, which gets all other options.
 * @param onClosed called as soon as the dialog is closed, while a submitted request may still run.
 * @param hasSecret the result is returned also after the page was left, because no other reply shows it again.
 * @returns promise of the result, or of undefined.
 */
export async function formDialog({
  values = {}, check, submit, fields, button, kind = 'primary', cancel = null, isTyped = () => false, onClosed = null, hasSecret = false,
  ...options
}) {
  let dialog = null;
  const form = createForm({
    values,
    check,
    update: () => dialog?.update(),
    async submit(typed) {
      const result = await submit(typed);
      if (result !== undefined) {
        dialog.close(result);
      }
    },
  });
  dialog = openDialog({
    ...options,
    isTyped: () => isTyped(form.values),
    body: ({ close }) => html`<form @submit=${form.onSubmit} novalidate>
      ${form.failure()} ${fields(form, close)}
      <div class="actions">
        <button type="button" @click=${() => close()}>${cancel ?? t('ui.cancel')}</button>
        ${form.submitButton(button, kind)}
      </div>
    </form>`,
  });
  dialog.closed.then(onClosed);
  const result = await dialog.outcome;
  // The page may have been left meanwhile: its callers must not act on another page.
  return hasSecret || !options.signal?.aborted ? result : undefined;
}

/**
 * Ask before an action that cannot be undone. The dialog stays open with the error if the action fails.
 *
 * @param name the name that must be typed; null = a button is enough.
 * @param action async function; its end closes the dialog.
 * @returns promise of true if the action succeeded.
 */
export async function confirmAction({ text, name = null, danger = true, action, ...options }) {
  const label = t('ui.type-name', { name });
  const isDone = await formDialog({
    ...options,
    values: { name: '' },
    check: (values) => (name !== null && values.name !== name ? { name: label } : {}),
    async submit() {
      await action();
      return true;
    },
    fields: (form) => html`<div class="dialog-text">${text}</div>
      ${name === null ? nothing : textField({ form, name: 'name', label, required: true })}`,
    kind: danger ? 'danger' : 'primary',
  });
  return isDone === true;
}
