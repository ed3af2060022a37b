/** The frame of every page: navigation, the state of the broker, the key, language and theme. */

import { html, nothing } from '../vendor/lit-html-3.3.3/lit-html.js';
import { closeStream } from './events.js';
import { setTheme, theme, THEMES } from './preferences.js';
import { href, navigate } from './router.js';
import { can, isAdmin, session, signOut } from './session.js';
import { LANGUAGES, language, setLanguage, t } from './text.js';
import { icon } from '../ui/icon.js';
import { toast } from '../ui/toast.js';

/** Every page: its path, its file below `pages/`, and, in the navigation, its group, icon and the right to see it. */
export const PAGES = [
  { path: '', file: 'overview', group: 'work', icon: 'overview' },
  { path: 'queues', file: 'queue/queues', group: 'work', icon: 'queue' },
  { path: 'queues/:queue', file: 'queue/queue', under: 'queues' },
  { path: 'topics', file: 'topic/topics', group: 'work', icon: 'topic' },
  { path: 'topics/:topic', file: 'topic/topic', under: 'topics' },
  { path: 'dead-letters', file: 'queue/dead-letters', group: 'work', icon: 'dead' },
  { path: 'half-messages', file: 'queue/half-messages', group: 'work', icon: 'half' },
  { path: 'message-history', file: 'message-history', group: 'work', icon: 'history' },
  { path: 'schedules', file: 'schedules', group: 'work', icon: 'schedule' },
  { path: 'connections', file: 'server/connections', group: 'server', icon: 'connection', allowed: () => can('manage') },
  { path: 'keys', file: 'access/keys', group: 'server', icon: 'key', allowed: () => can('admin') },
  { path: 'audit', file: 'access/audit', group: 'server', icon: 'audit', allowed: () => can('manage') },
  { path: 'storage', file: 'server/storage', group: 'server', icon: 'storage', allowed: isAdmin },
  { path: 'settings', file: 'server/settings', group: 'server', icon: 'settings', allowed: () => isAdmin() && can('manage') },
];

const SHOWN_GROUPS = ['work', 'server'];

function navigation(pattern) {
  const active = PAGES.find((page) => page.path === pattern);
  const activePath = active?.under ?? active?.path;
  return SHOWN_GROUPS.map((group) => {
    const pages = PAGES.filter((page) => page.group === group && (page.allowed?.() ?? true));
    if (pages.length === 0) {
      return nothing;
    }
    return html`<div class="nav-group">
      <p class="nav-heading" id=${`nav-${group}`}>${t(`shell.group.${group}`)}</p>
      <ul aria-labelledby=${`nav-${group}`}>
        ${pages.map(
          (page) => html`<li>
            <a href=${href(page.path)} aria-current=${page.path === activePath ? 'page' : nothing} @click=${closeMenu}>
              ${icon(page.icon)}<span>${t(`shell.page.${page.path || 'overview'}`)}</span>
            </a>
          </li>`,
        )}
      </ul>
    </div>`;
  });
}

function closeMenu() {
  const menu = document.getElementById('navigation');
  menu?.classList.remove('open');
  document.getElementById('menu-button')?.setAttribute('aria-expanded', 'false');
}

function onMenuKey(event) {
  if (event.key === 'Escape' && document.getElementById('navigation').classList.contains('open')) {
    closeMenu();
    document.getElementById('menu-button').focus();
  }
}

function toggleMenu(event) {
  const isOpen = document.getElementById('navigation').classList.toggle('open');
  event.currentTarget.setAttribute('aria-expanded', String(isOpen));
}

/** Return the choice of language and theme; the sign-in page shows it too. */
export function preferences(update) {
  return html`<div class="preferences">
    <label class="inline"
      ><span class="visually-hidden">${t('shell.language')}</span>
      <select
        @change=${(event) => {
          setLanguage(event.target.value);
          update();
        }}
      >
        ${LANGUAGES.map(({ code, name }) => html`<option value=${code} ?selected=${code === language().code}>${name}</option>`)}
      </select></label
    >
    <label class="inline"
      ><span class="visually-hidden">${t('shell.theme')}</span>
      <select
        @change=${(event) => {
          setTheme(event.target.value);
          update();
        }}
      >
        ${THEMES.map((name) => html`<option value=${name} ?selected=${name === theme()}>${t(`shell.theme.${name}`)}</option>`)}
      </select></label
    >
  </div>`;
}

async function leave() {
  try {
    await signOut();
  } catch {
    // The cookie is still valid: a sign-in page would tell the reader that the session has ended.
    toast(t('shell.not-signed-out'));
    return;
  }
  closeStream();
  navigate(href(''));
}

/** Return the console around a page's content. */
export function shell({ content, pattern, isAway, update }) {
  return html`
    <a class="skip" href="#content" @click=${skip}>${t('shell.skip')}</a>
    <header class="bar">
      <button
        id="menu-button"
        class="quiet menu-button"
        aria-expanded="false"
        aria-controls="navigation"
        @click=${toggleMenu}
      >
        ${icon('menu')}<span class="visually-hidden">${t('shell.menu')}</span>
      </button>
      <a class="brand" href=${href('')}>cmqd<span class="region">${session.key.region}</span></a>
      <p class="broker ${isAway ? 'away' : ''}" role="status">
        <span class="dot" aria-hidden="true"></span>${isAway ? t('shell.away') : t('shell.connected')}
      </p>
    </header>
    <nav id="navigation" class="side" aria-label=${t('shell.navigation')} @keydown=${onMenuKey}>
      ${navigation(pattern)}
      <div class="side-foot">
        <p class="who">
          <span class="who-account">${session.key.account}</span>
          <span class="who-key" title=${session.key.secret_id}>${session.key.secret_id}</span>
        </p>
        ${preferences(update)}
        <button class="quiet wide" @click=${leave}>${icon('leave')}<span>${t('shell.sign-out')}</span></button>
      </div>
    </nav>
    <main id="content" tabindex="-1">
      ${isAway ? html`<p class="banner warning" role="alert">${t('shell.away-text')}</p>` : nothing} ${content}
    </main>
  `;
}

function skip(event) {
  event.preventDefault();
  document.getElementById('content').focus();
}
