/** Start of the console: the session, the page of the address, and its drawing. */

import { html, render } from '../vendor/lit-html-3.3.3/lit-html.js';
import { ApiError, observers, request } from './api.js';
import { applyTheme } from './preferences.js';
import { currentPath, href, listen, match, navigate } from './router.js';
import { closeStream, onEvent } from './events.js';
import { endSession, loadSession, session, signIn } from './session.js';
import { PAGES, shell } from './shell.js';
import { addTexts, t } from './text.js';
import texts from './shell.text.js';
import { problemText } from '../ui/notice.js';
import { toast } from '../ui/toast.js';

addTexts(texts);

const root = document.getElementById('console');
const SESSION_RETRY_MS = 2_000;
const AWAY_CHECK_MS = 2_000;
/** Key of the file for which this tab loaded the document anew. */
const RELOADED = 'cmqd.reloaded';

/** The page that is shown: its pattern, its view, and the controller that ends it. */
let current = { pattern: null, view: null, ending: new AbortController(), failure: null };
let isAway = false;
let isAsking = false;
/** The end of the subscription to the stream's news about the broker, or null without a session. */
let watching = null;
let isDrawing = false;

/** Draw the console again, at the next frame. Many changes of a moment are one drawing. */
export function update() {
  if (!isDrawing) {
    isDrawing = true;
    requestAnimationFrame(() => {
      isDrawing = false;
      draw();
    });
  }
}

function draw() {
  if (session.state === 'unknown') {
    render(html`<main class="start" aria-busy="true"><p>${isAway ? t('shell.away') : t('ui.loading')}</p></main>`, root);
    return;
  }
  const content = drawPage();
  render(session.state === 'out' ? content : shell({ content, pattern: current.pattern, isAway, update }), root);
  const name = current.title?.();
  document.title = name ? `${name} · cmqd` : 'cmqd';
}

/** Return the content of the page; a page that fails leaves the navigation usable. */
function drawPage() {
  if (!current.failure) {
    try {
      return current.view?.() ?? html`<div class="page" aria-busy="true"></div>`;
    } catch (failure) {
      console.error(failure);
      current.failure = failure;
    }
  }
  return html`<div class="page">
    <h1 tabindex="-1">${t('shell.failed')}</h1>
    <p role="alert">${problemText(current.failure)}</p>
  </div>`;
}

/**
 * Load the module of a page. If its file does not come, load the whole document anew once the gateway answers.
 *
 * A browser remembers a module that it could not load, also when the gateway is back: only a new document asks again.
 * After an update of the gateway, a file of the former version never comes.
 */
async function loadPage(file, signal) {
  try {
    const module = await import(`../pages/${file}.js`);
    sessionStorage.removeItem(RELOADED);
    return module;
  } catch (failure) {
    // A second failure is a fault of the file, and further loads would not end.
    if (sessionStorage.getItem(RELOADED) === file) {
      throw failure;
    }
  }
  while (!signal.aborted) {
    try {
      await request('GET', '/console/session', { signal });
    } catch {
      await new Promise((resolve) => setTimeout(resolve, AWAY_CHECK_MS));
      continue;
    }
    sessionStorage.setItem(RELOADED, file);
    location.reload();
    break;
  }
  // The document goes: nothing more is to be drawn.
  return new Promise(() => {});
}

/** Load and show the page of the address. */
async function show({ focus = true } = {}) {
  const path = currentPath();
  const found = session.state === 'out' ? null : PAGES.map((page) => [page, match(page.path, path)]).find(([, params]) => params);
  watchBroker();
  current.ending.abort();
  const ending = new AbortController();
  current = { pattern: found?.[0].path ?? null, view: null, ending, failure: null };
  update();
  try {
    const file = session.state === 'out' ? 'access/sign-in' : (found?.[0].file ?? 'not-found');
    const module = await loadPage(file, ending.signal);
    if (ending.signal.aborted) {
      return;
    }
    const page = module.page({
      params: found?.[1] ?? {},
      query: new URLSearchParams(location.search),
      update,
      signal: ending.signal,
      every: (milliseconds, action) => every(milliseconds, action, ending.signal),
      signedIn,
    });
    Object.assign(current, page);
  } catch (failure) {
    current.failure = failure;
  }
  draw();
  if (focus) {
    // A screen reader announces the new page by its heading; the address changed without a load.
    root.querySelector('h1')?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

/** Call `action` now and then, while the page is shown and visible; the next call waits for the end of the one before. */
function every(milliseconds, action, signal) {
  let timer = 0;
  const run = async () => {
    if (!document.hidden) {
      try {
        await action();
      } catch (error) {
        if (!signal.aborted && error.name !== 'AbortError' && error.status === undefined) {
          throw error;
        }
      }
    }
    if (!signal.aborted) {
      timer = setTimeout(run, milliseconds);
    }
  };
  timer = setTimeout(run, milliseconds);
  signal.addEventListener('abort', () => clearTimeout(timer));
}

/** Show the page that was asked for before the sign-in. */
function signedIn() {
  show();
}

/**
 * Take the news that the broker is away, or back. Pages load again at the event `cmqd:back`; `cmqd:away` is its begin.
 *
 * The news has two sources: the answers of requests, and the stream of events, which also tells pages that make no
 * requests. A broker that is away is asked until it answers.
 */
function setAway(value) {
  if (value === isAway) {
    return;
  }
  isAway = value;
  update();
  if (isAway) {
    dispatchEvent(new Event('cmqd:away'));
    askBroker();
  } else {
    dispatchEvent(new Event('cmqd:back'));
  }
}

observers.add((error) => {
  if (error?.status === 401 && session.state === 'in') {
    endSession();
    closeStream();
    show();
  } else if (error?.code === 'wrong_csrf_token') {
    dispatchEvent(new Event('cmqd:key-changed'));
  } else if (error === null || error.isAway) {
    setAway(error !== null);
  }
});

// Another page of this browser may have signed in anew while this one was hidden, perhaps with another key: the pages
// share a cookie, but not the rights and the token that they have read.
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && session.state !== 'unknown') {
    dispatchEvent(new Event('cmqd:key-changed'));
  }
});

/** Ask whether the broker is there until it answers; the observer above takes the answer. */
async function askBroker() {
  if (isAsking || session.state !== 'in') {
    return;
  }
  isAsking = true;
  await loadSession().catch(() => {});
  while (isAway && session.state === 'in') {
    await new Promise((resolve) => setTimeout(resolve, AWAY_CHECK_MS));
    await loadSession().catch(() => {});
  }
  isAsking = false;
  if (session.state === 'out') {
    // The session ended while the broker was away.
    closeStream();
    show();
  }
}

/** Listen to the stream's news about the broker while the session lasts. */
function watchBroker() {
  if (session.state !== 'in') {
    watching?.abort();
    watching = null;
  } else if (watching === null) {
    watching = new AbortController();
    onEvent('broker', ({ is_away: value }) => (value ? setAway(true) : isAway && askBroker()), watching.signal);
  }
}

addEventListener('cmqd:stream-lost', askBroker);

// The stream of events ended with the session, or because the roles of the key changed.
addEventListener('cmqd:key-changed', async () => {
  const before = JSON.stringify(session.key);
  try {
    await loadSession();
  } catch {
    return;
  }
  if (session.state === 'out') {
    closeStream();
  }
  // A cookie that was renewed meanwhile is no change.
  if (JSON.stringify(session.key) !== before) {
    show();
  }
});

// An action without an error of its own on the page must not fail in silence.
addEventListener('unhandledrejection', (event) => {
  if (event.reason?.name === 'AbortError') {
    event.preventDefault();
  } else if (event.reason instanceof ApiError) {
    event.preventDefault();
    toast(problemText(event.reason));
  }
});

async function start() {
  applyTheme();
  update();
  const link = new URLSearchParams(location.hash.slice(1)).get('token');
  if (link) {
    // The token is used once; the address must not keep it.
    history.replaceState(null, '', location.pathname + location.search);
  }
  for (;;) {
    try {
      if (link) {
        await signIn({ token: link }).catch(async (error) => {
          if (error.isAway) {
            throw error;
          }
          await loadSession();
          // The page goes on with the session of before, or with the sign-in; neither says that the link was refused.
          toast(problemText(error));
        });
      } else {
        await loadSession();
      }
      break;
    } catch {
      isAway = true;
      update();
      await new Promise((resolve) => setTimeout(resolve, SESSION_RETRY_MS));
    }
  }
  isAway = false;
  listen(() => show());
  if (location.pathname === '/console') {
    navigate(href(''), { replace: true });
  } else {
    await show({ focus: false });
  }
}

start();
