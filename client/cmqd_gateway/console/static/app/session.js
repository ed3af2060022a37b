/** The session: the key that is signed in, and its rights. The secret is sent once and not kept. */

import { request, setCsrfToken } from './api.js';

const SESSION = '/console/session';

export const session = {
  /** `unknown` until the first answer, then `out` or `in`. */
  state: 'unknown',
  /** The key: `secret_id`, `account`, `roles`, `names`, `is_admin`, `region`; null without a session. */
  key: null,
  /** The broker for programs: `address` (`host:port`) and `tls`; null without a session. */
  broker: null,
  version: '',
};

function use(reply) {
  setCsrfToken(reply.csrf_token);
  Object.assign(session, { state: 'in', key: reply.key, broker: reply.broker, version: reply.version ?? '' });
}

/** Read the session of the cookie. @throws ApiError: the gateway was not reached. */
export async function loadSession() {
  try {
    const reply = await request('GET', SESSION);
    if (reply.key) {
      use(reply);
    } else {
      endSession();
    }
  } catch (error) {
    if (error.status !== 401) {
      throw error;
    }
    endSession();
  }
}

/** Sign in with a key pair, or with `{ token }` of a link. @throws ApiError */
export async function signIn(proof) {
  use(await request('POST', SESSION, { body: proof }));
}

/** End the session at the gateway and here. @throws ApiError: the gateway was not reached, and the session goes on. */
export async function signOut() {
  await request('DELETE', SESSION);
  endSession();
}

/** Forget the session, after the gateway refused its cookie. */
export function endSession() {
  setCsrfToken('');
  Object.assign(session, { state: 'out', key: null, broker: null });
}

/** Return the URL of the broker for programs, with a key pair or with words in its place. */
export function brokerUrl(secretId = 'SECRET_ID', secret = 'SECRET_KEY') {
  // A page may be drawn once more after its session ended.
  const { address, tls } = session.broker ?? { address: 'HOST', tls: false };
  return `cmq://${secretId}:${encodeURIComponent(secret)}@${address}${tls ? '?tls=1' : ''}`;
}

/** Return true if the key has a role: `admin`, `manage`, `send`, `consume` or `read`. Actions that it forbids are not shown. */
export function can(role) {
  return session.key?.roles.includes(role) ?? false;
}

/** Return true for a key of the account that manages all accounts and sees the server. */
export function isAdmin() {
  return session.key?.is_admin ?? false;
}
