/** The dialogs of subscriptions: create, change, end, drop, and the secrets that are shown once. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { count, time } from '../../app/format.js';
import { limits, rangeOf } from '../../app/limits.js';
import { t } from '../../app/text.js';
import { attributeField, attributesIn, changesOf, defaultsOf } from '../../ui/attributes.js';
import { copyBlock } from '../../ui/copy.js';
import { confirmAction, formDialog, openDialog } from '../../ui/dialog.js';
import { durationField, nameField, selectField, textField } from '../../ui/form.js';
import { createQueueField } from '../../ui/queue-field.js';
import { toast } from '../../ui/toast.js';
import { listOf } from './topic-labels.js';

/** Return the attributes of a subscription that its topic and its endpoint have a use for. */
function usedOf(declared, isRouting, isUrl) {
  const unused = [isRouting ? 'filter_tags' : 'binding_keys', isUrl ? null : 'content_format', 'paused'];
  return Object.keys(declared).filter((name) => !unused.includes(name));
}

function attributeFields(form, declared, isRouting, isUrl) {
  // A tag has no comma.
  const own = { filter_tags: { parse: listOf }, binding_keys: { required: true } };
  return usedOf(declared, isRouting, isUrl).map((name) => attributeField(form, declared, name, own[name]));
}

/** Return those of the values that are in use. */
function usedValues(values, declared, isRouting, isUrl) {
  return Object.fromEntries(usedOf(declared, isRouting, isUrl).map((name) => [name, values[name]]));
}

/** Let the refusal of a list or of a target stand beside its field. */
function withField(error) {
  if (['queue', 'url'].includes(error.field) || error.code === 'queue_not_found') {
    error.field = 'endpoint';
  } else {
    error.field = /^\w+/.exec(error.field ?? '')?.[0];
  }
  return error;
}

/** Ask for a new subscription and create it; returns its name, or undefined. */
export async function createSubscription(topic, signal) {
  const isRouting = topic.attributes.filter_type === 'routing';
  const declared = attributesIn(await limits('NewSubscription'));
  const queueField = createQueueField(signal);
  let secret = null;
  const name = await formDialog({
    title: () => t('topic.sub.create-title', { topic: topic.name }),
    signal,
    hasSecret: true,
    values: { name: '', target: 'queue', endpoint: '', ...defaultsOf(declared) },
    fields: (form) => [
      nameField({ form }),
      selectField({
        form,
        name: 'target',
        label: t('topic.sub.target'),
        options: ['queue', 'url'].map((value) => ({ value, label: t(`topic.sub.target.${value}`) })),
      }),
      form.values.target === 'url'
        ? textField({
            form, name: 'endpoint', label: t('topic.sub.url'), hint: t('topic.sub.url-hint'), required: true,
            placeholder: 'https://partner.example/hook',
          })
        : queueField({ form, name: 'endpoint', label: t('ui.queue'), hint: t('topic.sub.queue-hint') }),
      attributeFields(form, declared, isRouting, form.values.target === 'url'),
    ],
    button: t('topic.sub.create'),
    async submit({ name: typed, target, endpoint, ...values }) {
      const body = { [target]: endpoint.trim(), ...usedValues(values, declared, isRouting, target === 'url') };
      try {
        ({ secret } = await api.post(`/topics/${segment(topic.name)}/subscriptions/${segment(typed)}`, body));
      } catch (error) {
        throw withField(error);
      }
      return typed;
    },
  });
  if (secret) {
    await showSecret({ name, secret, signal });
  }
  return name;
}

/** Ask for changes of a subscription; returns true after a change. */
export async function editSubscription(info, signal) {
  const [isRouting, isUrl] = [info.binding_keys.length > 0, info.protocol !== 'queue'];
  const declared = attributesIn(await limits('SubscriptionChanges'));
  return formDialog({
    title: () => t('topic.sub.edit-title', { name: info.name }),
    signal,
    values: info,
    fields: (form) => html`${attributeFields(form, declared, isRouting, isUrl)}
      <p class="hint">${t('topic.sub.filters-later')}</p>`,
    button: t('ui.save'),
    async submit(values) {
      const changes = changesOf(usedValues(values, declared, isRouting, isUrl), info);
      try {
        if (Object.keys(changes).length > 0) {
          await api.patch(`/topics/${segment(info.topic)}/subscriptions/${segment(info.name)}`, changes);
        }
      } catch (error) {
        throw withField(error);
      }
      toast(t('topic.sub.saved', { name: info.name }));
      return true;
    },
  });
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
  const { overlap: declared } = await limits('RotateSecret');
  const rotated = await formDialog({
    title: () => t('topic.sub.rotate-title', { name }),
    signal,
    hasSecret: true,
    values: { overlap: declared.default },
    fields: (form) => html`<p>${t('topic.sub.rotate-text')}</p>
      ${durationField({
        form, name: 'overlap', label: t('topic.sub.overlap'), hint: t('topic.sub.overlap-hint'), ...rangeOf(declared),
        initial: declared.default,
      })}`,
    button: t('topic.sub.rotate'),
    submit: ({ overlap }) => api.post(`/topics/${segment(topic)}/subscriptions/${segment(name)}/rotate-secret`, { overlap }),
  });
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
