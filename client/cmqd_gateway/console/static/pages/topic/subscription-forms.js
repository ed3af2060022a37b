/** The dialogs of subscriptions: create, change, end, drop, and the secrets that are shown once. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { count, time } from '../../app/format.js';
import { limits } from '../../app/limits.js';
import { t } from '../../app/text.js';
import { copyBlock } from '../../ui/copy.js';
import { confirmAction, openDialog } from '../../ui/dialog.js';
import { areaField, createForm, durationField, field, selectField, textField } from '../../ui/form.js';
import { live } from '../../vendor/lit-html-3.3.3/directives/live.js';
import { toast } from '../../ui/toast.js';
import { linesOf, listOf } from './topic-labels.js';

const NAME = /^[A-Za-z0-9_-]{1,64}$/;
const SUGGESTED = 20;

/** Return the field of the filters: tags in a line, or binding keys in lines. */
function filterField(form, isRouting) {
  return isRouting
    ? areaField({ form, name: 'filters', label: t('topic.sub.keys'), hint: t('topic.sub.keys-hint'), rows: 3, code: true, required: true })
    : textField({ form, name: 'filters', label: t('topic.sub.tags'), hint: t('topic.sub.tags-hint') });
}

function filtersOf(text, isRouting) {
  return isRouting ? { binding_keys: linesOf(text) } : { filter_tags: listOf(text) };
}

/** Let the refusal of a filter or of a target stand beside its field. */
function withField(error) {
  if (/^(filter_tags|binding_keys)/.test(error.field ?? '')) {
    error.field = 'filters';
  } else if (['endpoint', 'queue', 'url'].includes(error.field) || error.code === 'queue_not_found') {
    error.field = 'endpoint';
  }
  return error;
}

function strategyFields(form, isUrl) {
  return html`${selectField({
    form,
    name: 'strategy',
    label: t('topic.sub.strategy'),
    options: ['exponential_decay', 'backoff'].map((value) => ({ value, label: t(`topic.sub.strategy.${value}`) })),
  })}
  ${isUrl
    ? selectField({
        form,
        name: 'content_format',
        label: t('topic.sub.format'),
        options: ['json', 'simplified'].map((value) => ({ value, label: t(`topic.sub.format.${value}`) })),
      })
    : nothing}`;
}

/** Ask for a new subscription and create it; returns its name, or undefined. */
export async function createSubscription(topic, signal) {
  const isRouting = topic.attributes.filter_type === 'routing';
  let queues = [];
  let dialog = null;
  let made = null;
  const suggest = async (text) => {
    try {
      queues = (await api.get('/queues', { search: text, limit: SUGGESTED }, { signal })).names;
      dialog?.update();
    } catch {
      // Suggestions only: the broker checks the name.
    }
  };
  const form = createForm({
    values: { name: '', target: 'queue', endpoint: '', filters: '', strategy: 'exponential_decay', content_format: 'json' },
    update: () => dialog?.update(),
    check: ({ name }) => (NAME.test(name) ? {} : { name: t('topic.sub.name-wrong') }),
    async submit({ name, target, endpoint, filters, strategy, content_format: contentFormat }) {
      const body = { [target]: endpoint.trim(), strategy, ...filtersOf(filters, isRouting) };
      if (target === 'url') {
        body.content_format = contentFormat;
      }
      try {
        made = await api.post(`/topics/${segment(topic.name)}/subscriptions/${segment(name)}`, body);
      } catch (error) {
        throw withField(error);
      }
      dialog.close(name);
    },
  });
  const endpointField = () =>
    form.values.target === 'url'
      ? textField({
          form, name: 'endpoint', label: t('topic.sub.url'), hint: t('topic.sub.url-hint'), required: true,
          placeholder: 'https://partner.example/hook',
        })
      : field({
          form, name: 'endpoint', label: t('topic.sub.queue'), hint: t('topic.sub.queue-hint'),
          input: ({ id, described, invalid }) => {
            form.addCheck('endpoint', (value) => (value.trim() === '' ? t('ui.required') : null));
            return html`<input
                id=${id} name="endpoint" list=${`${id}-queues`} autocomplete="off" spellcheck="false" required
                aria-describedby=${described} aria-invalid=${invalid} .value=${live(form.values.endpoint)}
                @input=${(event) => {
                  form.set('endpoint', event.target.value);
                  suggest(event.target.value.trim());
                }}
              />
              <datalist id=${`${id}-queues`}>${queues.map((name) => html`<option value=${name}></option>`)}</datalist>`;
          },
        });
  dialog = openDialog({
    title: () => t('topic.sub.create-title', { topic: topic.name }),
    signal,
    body: ({ close }) => html`<form @submit=${form.onSubmit} novalidate>
      ${form.failure()}
      ${textField({ form, name: 'name', label: t('topic.sub.name'), hint: t('topic.sub.name-hint'), required: true })}
      ${selectField({
        form,
        name: 'target',
        label: t('topic.sub.target'),
        options: ['queue', 'url'].map((value) => ({ value, label: t(`topic.sub.target.${value}`) })),
      })}
      ${endpointField()} ${filterField(form, isRouting)} ${strategyFields(form, form.values.target === 'url')}
      <div class="actions">
        <button type="button" @click=${() => close()}>${t('ui.cancel')}</button>
        ${form.submitButton(t('topic.sub.create'))}
      </div>
    </form>`,
  });
  suggest('');
  const name = await dialog.outcome;
  if (made?.secret) {
    await showSecret({ name, secret: made.secret, signal });
  }
  return name;
}

/** Ask for changes of a subscription; returns true after a change. */
export async function editSubscription(info, signal) {
  const isRouting = info.binding_keys.length > 0;
  const path = `/topics/${segment(info.topic)}/subscriptions/${segment(info.name)}`;
  const filtersBefore = isRouting ? info.binding_keys.join('\n') : info.filter_tags.join(', ');
  let dialog = null;
  const form = createForm({
    values: {
      filters: filtersBefore,
      strategy: info.strategy,
      content_format: info.content_format,
    },
    update: () => dialog?.update(),
    async submit({ filters, ...attributes }) {
      // Only a changed text is read again: a tag may have a character that separates tags here.
      const changes = filters === filtersBefore ? {} : filtersOf(filters, isRouting);
      try {
        await api.patch(path, { ...attributes, ...changes });
      } catch (error) {
        throw withField(error);
      }
      toast(t('topic.sub.saved', { name: info.name }));
      dialog.close(true);
    },
  });
  dialog = openDialog({
    title: () => t('topic.sub.edit-title', { name: info.name }),
    signal,
    body: ({ close }) => html`<form @submit=${form.onSubmit} novalidate>
      ${form.failure()} ${filterField(form, isRouting)}
      <p class="hint">${t('topic.sub.filters-later')}</p>
      ${strategyFields(form, info.protocol !== 'queue')}
      <div class="actions">
        <button type="button" @click=${() => close()}>${t('ui.cancel')}</button>
        ${form.submitButton(t('topics.form.save'))}
      </div>
    </form>`,
  });
  return dialog.closed;
}

/** End a subscription after its name was typed; returns true after the end. */
export async function endSubscription({ topic, name }, signal) {
  const isEnded = await confirmAction({
    title: t('topic.sub.end-title', { name }),
    text: html`<p>${t('topic.sub.end-text')}</p>`,
    button: t('topic.sub.end'),
    name,
    signal,
    action: () => api.delete(`/topics/${segment(topic)}/subscriptions/${segment(name)}`),
  });
  if (isEnded) {
    toast(t('topic.sub.ended', { name }));
  }
  return isEnded;
}

/** Drop the waiting messages of a subscription after its name was typed; returns true after the drop. */
export async function dropWaiting({ topic, name }, signal) {
  let dropped = 0;
  const isDropped = await confirmAction({
    title: t('topic.sub.drop-title', { name }),
    text: html`<p>${t('topic.sub.drop-text')}</p>`,
    button: t('topic.sub.drop'),
    name,
    signal,
    async action() {
      dropped = (await api.post(`/topics/${segment(topic)}/subscriptions/${segment(name)}/drop`)).messages;
    },
  });
  if (isDropped) {
    toast(t('topic.sub.dropped-now', { count: count(dropped) }));
  }
  return isDropped;
}

/** Make a new secret and show it. */
export async function rotateSecret({ topic, name }, signal) {
  const { minimum, maximum, default: initial } = (await limits('RotateSecret')).overlap;
  let dialog = null;
  const form = createForm({
    values: { overlap: initial },
    update: () => dialog?.update(),
    async submit({ overlap }) {
      dialog.close(await api.post(`/topics/${segment(topic)}/subscriptions/${segment(name)}/rotate-secret`, { overlap }));
    },
  });
  dialog = openDialog({
    title: () => t('topic.sub.rotate-title', { name }),
    signal,
    body: ({ close }) => html`<form @submit=${form.onSubmit} novalidate>
      ${form.failure()}
      <p>${t('topic.sub.rotate-text')}</p>
      ${durationField({
        form, name: 'overlap', label: t('topic.sub.overlap'), text: t('topic.sub.overlap-hint'),
        minimum, maximum, initial,
      })}
      <div class="actions">
        <button type="button" @click=${() => close()}>${t('ui.cancel')}</button>
        ${form.submitButton(t('topic.sub.rotate'))}
      </div>
    </form>`,
  });
  const rotated = await dialog.outcome;
  if (rotated) {
    await showSecret({ name, secret: rotated.secret, overlapUntil: rotated.overlap_until, signal });
  }
}

/** Show a secret, which no other reply shows again. */
function showSecret({ name, secret, overlapUntil = null, signal }) {
  return openDialog({
    title: () => t('topic.sub.secret-title', { name }),
    signal,
    isKept: true,
    body: ({ close }) => html`<p>${t('topic.sub.secret-text')}</p>
      ${copyBlock(secret)}
      ${overlapUntil ? html`<p class="hint">${t('topic.sub.secret-overlap', { time: time(overlapUntil) })}</p>` : nothing}
      <div class="actions"><button type="button" class="primary" @click=${() => close()}>${t('topic.sub.secret-done')}</button></div>`,
  }).closed;
}
