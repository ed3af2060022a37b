/**
 * The life of a message in a queue as a picture with the counts of the states.
 *
 * Two drawings of the same graph, wide and upright; the styles show the drawing that fits the window. The colours of the
 * states are classes. A text alternative tells the counts and the ways; the states can be clicked, which saves pointer
 * users a way to the choice of states below the picture and gives nothing that the choice lacks.
 */

import { html, nothing, svg } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { count, shortCount } from '../../app/format.js';
import { addTexts, t } from '../../app/text.js';
import texts from './life-picture.text.js';

addTexts(texts);

const BOX = { width: 148, height: 66 };

/** Corners of the boxes, and ways `[path, label, x, y, anchor]`, of both drawings. */
const WIDE = {
  name: 'wide',
  size: [920, 282],
  sent: [30, 143],
  boxes: {
    delayed: [118, 20],
    active: [320, 110],
    half: [118, 200],
    in_flight: [564, 110],
    rewindable: [770, 110],
    dead: [564, 210],
  },
  ways: {
    sent: ['M56 143 H314', null, 0, 0, 'middle'],
    toDelayed: ['M56 136 C86 130 84 53 112 53', null, 0, 0, 'middle'],
    toHalf: ['M56 150 C86 156 84 233 112 233', null, 0, 0, 'middle'],
    fromDelayed: ['M266 53 C320 53 356 62 368 104', 'life.delay-ends', 346, 56, 'start'],
    fromHalf: ['M266 233 C320 233 356 224 368 182', 'life.commit', 356, 232, 'start'],
    receive: ['M468 130 H558', 'life.receive', 513, 122, 'middle'],
    back: ['M564 158 H474', 'life.return', 518, 175, 'middle'],
    remove: ['M712 143 H764', 'life.delete', 739, 135, 'middle'],
    rewind: ['M844 110 V52 Q844 40 832 40 H458 Q444 40 444 54 V104', 'life.rewind', 640, 32, 'middle'],
    dead: ['M638 176 V204', 'life.rejected', 648, 197, 'start'],
  },
};
const UPRIGHT = {
  name: 'upright',
  size: [340, 492],
  sent: [170, 12],
  boxes: {
    delayed: [12, 66],
    active: [96, 180],
    half: [180, 66],
    in_flight: [96, 300],
    rewindable: [12, 414],
    dead: [180, 414],
  },
  ways: {
    sent: ['M170 28 V174', null, 0, 0, 'middle'],
    toDelayed: ['M160 26 C140 40 86 36 86 60', null, 0, 0, 'middle'],
    toHalf: ['M180 26 C200 40 254 36 254 60', null, 0, 0, 'middle'],
    fromDelayed: ['M86 132 C86 160 120 156 128 174', 'life.delay-ends', 82, 160, 'end'],
    fromHalf: ['M254 132 C254 160 220 156 212 174', 'life.commit', 256, 160, 'start'],
    receive: ['M150 246 V294', 'life.receive', 144, 274, 'end'],
    back: ['M190 300 V252', 'life.return', 197, 274, 'start'],
    remove: ['M120 366 C120 392 96 388 92 408', 'life.delete', 90, 390, 'end'],
    rewind: ['M12 447 Q4 447 4 438 V222 Q4 213 14 213 H90', 'life.rewind', 50, 206, 'middle'],
    dead: ['M220 366 C220 392 244 388 248 408', 'life.rejected', 250, 390, 'start'],
  },
};

/**
 * Return the picture.
 *
 * @param counts `{ active, in_flight, delayed, half, rewindable }`; null = still loading.
 * @param attributes the queue's: `transactional`, `rewind`, `dead_letter_queue`.
 * @param deadLetters messages in the dead-letter queue, or null if they are not known.
 * @param chosen state that the page browses, or null.
 * @param onChoose called with a state, or with `dead`.
 */
export function lifePicture({ counts, attributes, deadLetters = null, chosen = null, onChoose = () => {} }) {
  const boxes = boxesOf(counts, attributes, deadLetters);
  return html`<figure class="life" aria-label=${t('life.title')}>
    <figcaption class="visually-hidden">${pictureText(boxes, attributes)}</figcaption>
    ${[WIDE, UPRIGHT].map((drawing) => picture(drawing, { boxes, chosen, onChoose }))}
  </figure>`;
}

/** Return the states of the picture: `[{ name, state, title, value, note }]`; the value null = no number. */
export function boxesOf(counts, attributes, deadLetters) {
  const hasRewind = attributes.rewind > 0;
  const deadQueue = attributes.dead_letter_queue;
  const plain = (state) => ({ state, title: t(`life.${state}`), value: counts?.[state] ?? null, note: null });
  return [
    plain('delayed'),
    plain('active'),
    ...(attributes.transactional || counts?.half > 0 ? [plain('half')] : []),
    plain('in_flight'),
    hasRewind || counts?.rewindable > 0
      ? plain('rewindable')
      : { state: 'rewindable', title: t('life.deleted'), value: null, note: t('life.gone'), isOff: true },
    deadQueue
      ? { state: 'dead', title: t('life.dead'), value: deadLetters, note: deadQueue }
      : { state: 'dead', title: t('life.dead'), value: null, note: t('life.no-dead'), isOff: true },
  ];
}

/** Return the text alternative: counts, then the ways from state to state. */
export function pictureText(boxes, attributes) {
  const states = boxes.filter((box) => box.value !== null).map((box) => `${box.title} ${count(box.value)}`);
  return [
    t('life.summary', { states: states.join(', ') }),
    t('life.paths'),
    attributes.transactional ? t('life.path-half') : '',
    attributes.rewind > 0 ? t('life.path-rewind') : '',
    attributes.dead_letter_queue ? t('life.path-dead', { queue: attributes.dead_letter_queue }) : '',
  ]
    .filter(Boolean)
    .join(' ');
}

function picture(drawing, { boxes, chosen, onChoose }) {
  const arrow = `life-arrow-${drawing.name}`;
  const has = (state) => boxes.some((box) => box.state === state && !box.isOff);
  const ways = Object.entries(drawing.ways).filter(([name]) => {
    const needs = { toHalf: 'half', fromHalf: 'half', rewind: 'rewindable', dead: 'dead' };
    return !(name in needs) || has(needs[name]);
  });
  const [x, y] = drawing.sent;
  return html`<svg class="life-picture ${drawing.name}" viewBox=${`0 0 ${drawing.size.join(' ')}`} aria-hidden="true" focusable="false">
    <defs>
      <marker id=${arrow} viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
        <path d="M0 0 L8 4 L0 8 z" class="life-arrow"/>
      </marker>
    </defs>
    <g class="life-ways">
      ${ways.map(
        ([, [path, label, labelX, labelY, anchor]]) => svg`
        <path d=${path} marker-end=${`url(#${arrow})`}/>
        ${label ? svg`<text x=${labelX} y=${labelY} text-anchor=${anchor}>${t(label)}</text>` : nothing}`,
      )}
      <text x=${x} y=${y + 4} text-anchor="middle">${t('life.sent')}</text>
    </g>
    ${boxes.map((box) => boxView(box, drawing.boxes[box.state], chosen, onChoose))}
  </svg>`;
}

function boxView(box, [x, y], chosen, onChoose) {
  const { width, height } = BOX;
  const name = box.state === 'in_flight' ? 'in-flight' : box.state;
  const isEmpty = box.value === 0;
  const classes = [
    'life-box',
    name,
    box.isOff ? 'off' : '',
    box.note ? 'noted' : '',
    isEmpty ? 'zero' : '',
    chosen === box.state ? 'chosen' : '',
  ];
  const note = box.note && box.note.length > 20 ? `${box.note.slice(0, 19)}…` : box.note;
  return svg`<g class=${classes.filter(Boolean).join(' ')} @click=${box.isOff ? null : () => onChoose(box.state)}>
    <rect x=${x} y=${y} width=${width} height=${height} rx="8"/>
    <rect class="life-edge" x=${x} y=${y + 10} width="4" height=${height - 20} rx="2"/>
    <text class="life-name" x=${x + 16} y=${y + (note ? 20 : 23)}>${box.title}</text>
    ${
      box.value === null
        ? svg`<text class="life-note" x=${x + 16} y=${y + 46}>${note ?? '…'}</text>`
        : svg`<text class="life-count" x=${x + 16} y=${y + (note ? 42 : 50)}>${shortCount(box.value)}</text>
          ${note ? svg`<text class="life-note" x=${x + 16} y=${y + 58}>${note}</text>` : nothing}`
    }
  </g>`;
}
