/** The page of a queue: the life of its messages, its messages by state, and the work with messages by hand. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { count, duration, time } from '../../app/format.js';
import { limits } from '../../app/limits.js';
import { href, navigate } from '../../app/router.js';
import { brokerUrl, can } from '../../app/session.js';
import { addTexts, t } from '../../app/text.js';
import { attributeFact } from '../../ui/attributes.js';
import { copyBlock } from '../../ui/copy.js';
import { confirmAction } from '../../ui/dialog.js';
import { icon } from '../../ui/icon.js';
import { lifePicture } from '../../ui/pictures/life-picture.js';
import { problem } from '../../ui/notice.js';
import { badge, card, emptyState, factList, moment, pageHead, queueLink } from '../../ui/parts.js';
import { toast } from '../../ui/toast.js';
import { createBrowser } from './queue-browser.js';
import { openQueueDialog } from './queue-form.js';
import { createReceiver } from './queue-receiver.js';
import { openSendDialog } from './queue-send.js';
import { openRewindDialog } from './rewind.js';
import texts from './queue.text.js';

addTexts(texts);

const COUNTS_MS = 2_000;

export function page({ params, query, update, signal, every }) {
  const name = params.queue;
  const path = `/queues/${segment(name)}`;
  const state = { info: null, declared: null, error: null, isMissing: false, deadLetters: null };
  const browser = createBrowser({ name, path, query, update, signal });
  let isOpening = false;
  const receiver = createReceiver({ path, update, signal, onChange: () => changed() });

  /** Read attributes and counts; of the dead-letter queue too, for the picture. */
  async function load() {
    try {
      state.declared ??= await limits('QueueAttributes');
      state.info = await api.get(path, {}, { signal });
      Object.assign(state, { error: null, isMissing: false });
      browser.follow(state.info.counts);
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      if (error.code === 'queue_not_found') {
        Object.assign(state, { isMissing: true, info: null });
      } else if (!error.isAway || state.info === null) {
        // The shell says that the broker is away; the figures of before stay on the page.
        state.error = error;
      }
      update();
      return;
    }
    await loadDeadLetters(state.info.attributes.dead_letter_queue);
    update();
  }

  async function loadDeadLetters(deadLetterQueue) {
    // The number of before stays until the next one is there: a drawing between the two must not lose it.
    let deadLetters = null;
    if (deadLetterQueue) {
      try {
        const { counts } = await api.get(`/queues/${segment(deadLetterQueue)}`, {}, { signal });
        deadLetters = counts.active + counts.in_flight + counts.delayed;
      } catch {
        // A name that the key may not see, or a queue deleted meanwhile: the picture has the name without a number.
      }
    }
    state.deadLetters = deadLetters;
  }

  /** Read everything again after an action of this page. */
  function changed() {
    load();
    browser.load();
  }

  const onBack = () => changed();
  addEventListener('cmqd:back', onBack, { signal });
  every(COUNTS_MS, load);
  load();
  if (can('read')) {
    browser.load();
  }

  const choose = (chosen) => {
    if (chosen === 'dead') {
      navigate(href(`queues/${segment(state.info.attributes.dead_letter_queue)}`));
    } else {
      browser.choose(chosen);
      document.getElementById('messages')?.scrollIntoView({ block: 'start' });
    }
  };

  const heldStates = () =>
    Object.entries(state.info.counts)
      .filter(([, value]) => value > 0)
      .map(([each, value]) => `${t(`queue.state.${each}`)} ${count(value)}`)
      .join(', ') || t('queue.purge-empty');

  async function purge() {
    const isDone = await confirmAction({
      title: t('queue.purge-title', { queue: name }),
      text: t('queue.purge-text', { states: heldStates() }),
      button: t('queue.purge-button'),
      name,
      signal,
      action: () => api.post(`${path}/clear`),
    });
    if (isDone) {
      toast(t('queue.purged-toast'));
      changed();
    }
  }

  async function remove() {
    const isDone = await confirmAction({
      title: t('queue.delete-title', { queue: name }),
      text: t('queue.delete-text', { states: heldStates() }),
      button: t('queue.delete'),
      name,
      signal,
      action: () => api.delete(path),
    });
    if (isDone) {
      toast(t('queue.deleted-queue-toast', { queue: name }));
      navigate(href('queues'));
    }
  }

  async function send() {
    if (await openSendDialog({ name, path, attributes: state.info.attributes, signal })) {
      changed();
    }
  }

  async function edit() {
    if ((await openQueueDialog({ info: state.info, signal })) !== null) {
      toast(t('queue.saved'));
      changed();
    }
  }

  async function rewind() {
    if (await openRewindDialog({ queue: name, signal })) {
      changed();
    }
  }

  /** A dialog may read limits before it opens: a second click meanwhile opens no second dialog. */
  const once = (action) => async () => {
    if (!isOpening) {
      isOpening = true;
      await action().finally(() => {
        isOpening = false;
      });
    }
  };

  function actions() {
    const { attributes } = state.info;
    const canManage = can('manage');
    return html`
      ${can('send') ? html`<button class="primary" @click=${once(send)}>${icon('send')}${t('queue.send')}</button>` : nothing}
      ${
        can('consume')
          ? html`<button @click=${once(() => receiver.open(attributes))}>${t('queue.receive')}</button>`
          : nothing
      }
      ${
        canManage
          ? html`<button @click=${once(edit)}>${icon('edit')}${t('queue.edit')}</button>
            ${can('read') ? html`<button @click=${once(rewind)}>${icon('rewind')}${t('queue.rewind')}</button>` : nothing}`
          : nothing
      }
      ${
        canManage
          ? html`<button @click=${once(purge)}>${t('queue.purge')}</button>
            <button @click=${once(remove)}>${icon('trash')}${t('queue.delete')}</button>`
          : nothing
      }
    `;
  }

  function view() {
    const crumbs = [{ text: t('ui.queues'), href: href('queues') }];
    if (state.isMissing) {
      return html`<div class="page">
        ${pageHead({ title: name, crumbs })}
        ${emptyState({
          title: t('queue.missing', { queue: name }),
          text: t('queue.missing-text'),
          action: html`<a class="button" href=${href('queues')}>${t('queue.all')}</a>`,
          command: can('manage') ? `cmq queue create ${name}` : null,
        })}
      </div>`;
    }
    if (state.info === null) {
      return html`<div class="page">
        ${pageHead({ title: name, crumbs })} ${problem(state.error)}
        ${state.error ? nothing : html`<p class="loading" aria-busy="true">${t('ui.loading')}</p>`}
      </div>`;
    }
    const { attributes, counts, dead_letter_sources: sources } = state.info;
    const badges = html`${attributes.transactional ? badge(t('queue.transactional')) : nothing}
      ${sources.length > 0 ? badge(t('queue.is-dead-letter-queue'), 'dead') : nothing}`;
    return html`<div class="page">
      ${pageHead({ title: name, crumbs, badges, actions: actions() })} ${problem(state.error)}
      ${card(
        t('queue.life'),
        lifePicture({
          counts,
          attributes,
          deadLetters: state.deadLetters,
          chosen: browser.chosen,
          onChoose: choose,
        }),
        { actions: ageView(state.info) },
      )}
      ${receiver.view(attributes)}
      ${can('read') ? browser.view(state.info) : nothing}
      ${deadLetterCard(attributes, sources)}
      ${card(t('queue.attributes'), attributeList(state.info, state.declared))}
      ${card(t('queue.consume'), consumeView(name))}
    </div>`;
  }

  return { title: () => name, view };
}

function ageView({ oldest_message_time: oldest }) {
  return html`<p class="soft">${t('queue.oldest')}: ${moment(oldest, t('ui.none'))}</p>`;
}

/** Where dead letters of the queue go, and from which queues they come. */
function deadLetterCard(attributes, sources) {
  const target = attributes.dead_letter_queue;
  if (!target && sources.length === 0) {
    return nothing;
  }
  const rule =
    attributes.dead_letter_max_receives > 0
      ? t('queue.dead-letters-rule-receives', { count: count(attributes.dead_letter_max_receives) })
      : t('queue.dead-letters-rule-age', { time: duration(attributes.dead_letter_after) });
  return card(
    t('ui.dead-letters'),
    factList([
      target ? [t('queue.dead-letters-to'), html`${queueLink(target)}, ${rule}`] : null,
      sources.length > 0
        ? [
            t('queue.dead-letter-sources'),
            sources.map((source, index) => html`${index > 0 ? ', ' : nothing}${queueLink(source)}`),
          ]
        : null,
    ]),
    {
      actions:
        sources.length > 0
          ? html`<a href=${href('dead-letters')}>${t('queue.dead-letters-page')}</a>`
          : nothing,
    },
  );
}

/** Return all attributes except the ones of the badge and of the card of dead letters. */
function attributeList({ attributes, id, create_time: created, modify_time: modified }, declared) {
  const isShown = (name) =>
    attributes[name] !== undefined &&
    !name.startsWith('dead_letter_') &&
    name !== 'transactional' &&
    (attributes.transactional || !['first_check', 'max_checks'].includes(name)) &&
    (attributes.auto_delete_after > 0 || name !== 'auto_delete_only_empty');
  return factList([
    ...Object.keys(declared).filter(isShown).map((name) => attributeFact(declared, name, attributes[name])),
    [t('ui.created'), created === null ? '–' : time(created)],
    [t('ui.changed'), modified === null ? '–' : time(modified)],
    [t('queue.id'), html`<code>${id}</code>`],
  ]);
}

function consumeView(name) {
  return html`<div class="consume">
    <p class="soft">${t('queue.consume-text')}</p>
    ${copyBlock(`cmq receive ${name} --wait 20s --delete`, t('ui.command'))}
    ${copyBlock(consumerProgram(name), t('ui.python'))}
  </div>`;
}

/** Return a program that consumes from a queue. */
function consumerProgram(name) {
  return `import asyncio

from cmqd_client import ConsumedMessage, connect

client = connect("${brokerUrl()}")


@client.queue("${name}").consumer(concurrency=8)
async def work(message: ConsumedMessage) -> None:
    print(message.body, message.receive_count)  # your work


asyncio.run(client.run(work))
`;
}
