/**
 * Live figures: one stream of events while a page that wants figures is visible.
 *
 * A browser opens six connections to a host at most, so a hidden tab closes its stream. The stream is opened again after
 * a loss, with pauses from 1 to 15 s. Each loss is the event `cmqd:stream-lost` of the window.
 */

const ADDRESS = '/console/events';
const PAUSES = [1, 2, 4, 8, 15];

/** Every event is kept, also without a subscriber: `hello` comes once, before the page that wants it is loaded. */
const NAMES = ['hello', 'broker', 'figures', 'top', 'findings'];

const subscribers = new Map(NAMES.map((name) => [name, new Set()]));
/** The last data by event, of the stream that is open. */
const last = new Map();
let source = null;
let losses = 0;
let timer = 0;

/**
 * Call `handler(data)` for each event of a name until the signal aborts. The last event of the name comes at once.
 *
 * @param name name of the event, one of NAMES.
 */
export function onEvent(name, handler, signal) {
  subscribers.get(name).add(handler);
  if (last.has(name)) {
    queueMicrotask(() => signal?.aborted || handler(last.get(name)));
  }
  signal?.addEventListener('abort', () => {
    subscribers.get(name).delete(handler);
    adjust();
  });
  adjust();
}

/** Close the stream, at the end of a session. */
export function closeStream() {
  clearTimeout(timer);
  timer = 0;
  source?.close();
  source = null;
  last.clear();
}

function isWanted() {
  return !document.hidden && [...subscribers.values()].some((handlers) => handlers.size > 0);
}

function adjust() {
  if (!isWanted()) {
    closeStream();
  } else if (source === null && timer === 0) {
    open();
  }
}

function open() {
  source = new EventSource(ADDRESS);
  for (const name of NAMES) {
    source.addEventListener(name, deliver);
  }
  source.addEventListener('bye', (event) => {
    const { reason } = JSON.parse(event.data);
    if (reason !== 'draining') {
      // The key or its roles have changed: what the pages offer may be wrong.
      dispatchEvent(new Event('cmqd:key-changed'));
    }
  });
  source.addEventListener('open', () => {
    losses = 0;
  });
  source.addEventListener('error', () => {
    closeStream();
    dispatchEvent(new Event('cmqd:stream-lost'));
    const pause = PAUSES[Math.min(losses, PAUSES.length - 1)];
    losses += 1;
    timer = setTimeout(() => {
      timer = 0;
      adjust();
    }, pause * 1000);
  });
}

function deliver(event) {
  const data = JSON.parse(event.data);
  last.set(event.type, data);
  subscribers.get(event.type).forEach((handler) => handler(data));
}

document.addEventListener('visibilitychange', adjust);
