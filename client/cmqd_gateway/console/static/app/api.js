/**
 * Requests to the JSON API with the cookie of the session.
 *
 * A reply that is no success is an ApiError with the sentence of the broker. A request that got no reply is an ApiError
 * with status 0. Repeats are the caller's decision: a send has an Idempotency-Key for them.
 */

export const API = '/api/v1';
/** Errors without an answer of the broker. Other errors with status 503 are answers: a full queue, a full disk. */
const AWAY = new Set([
  'no_reply', 'server_unreachable', 'connection_lost', 'request_timeout', 'client_closed', 'shutting_down',
]);
/** Paths that the gateway answers alone: a success there does not show that the broker is back. */
const WITHOUT_BROKER = new Set(['/openapi.json', '/console/history']);

/** A refused or failed request; `message` is a sentence for people. */
export class ApiError extends Error {
  constructor({ status, name, detail, field = null, retryAfter = null, details = {} }) {
    super(detail);
    /** HTTP status; 0 = no reply. */
    this.status = status;
    /** Stable name of the error, such as `queue_not_found`. */
    this.code = name;
    /** Field of the request that the error is about, or null. */
    this.field = field;
    /** Seconds after which a repeat may succeed, or null. */
    this.retryAfter = retryAfter;
    this.details = details;
  }

  /** True if the gateway or the broker was not reached. */
  get isAway() {
    return AWAY.has(this.code) || (this.code === 'no_problem' && this.status >= 502);
  }
}

/** Called with each ApiError and, after an answer of the broker, with null; the shell shows whether the broker is away. */
export const observers = new Set();
let csrfToken = '';

/** Use this CSRF token in all later requests that change state. */
export function setCsrfToken(token) {
  csrfToken = token;
}

function address(path, query) {
  const url = new URL(path.startsWith('/console/') ? path : API + path, location.origin);
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== '') {
        url.searchParams.append(name, each);
      }
    }
  }
  return url;
}

/**
 * Make a request and return the reply's JSON; null if the reply has no body.
 *
 * @param method HTTP method.
 * @param path path below /api/v1, or a path that begins with /console/; use `segment` for names in it.
 * @param options `query` object, `body` object, `signal` AbortSignal, `headers` object.
 * @throws ApiError, or the signal's reason.
 */
export async function request(method, path, { query, body, signal, headers } = {}) {
  const init = { method, signal, headers: { Accept: 'application/json', 'X-Cmqd-Client': 'console', ...headers }, credentials: 'same-origin' };
  if (method !== 'GET') {
    init.headers['X-CSRF-Token'] = csrfToken;
    if (body !== undefined) {
      init.headers['Content-Type'] = 'application/json';
      init.body = JSON.stringify(body);
    }
  }
  let reply;
  let content;
  try {
    reply = await fetch(address(path, query), init);
    content = await reply.text();
  } catch (failure) {
    if (signal?.aborted) {
      throw failure;
    }
    throw observed(new ApiError({ status: 0, name: 'no_reply', detail: 'The gateway does not answer.' }));
  }
  if (!reply.ok) {
    throw observed(refusal(reply, content));
  }
  if (!WITHOUT_BROKER.has(path)) {
    observers.forEach((observer) => observer(null));
  }
  return content === '' ? null : JSON.parse(content);
}

function refusal(reply, content) {
  let problem = {};
  try {
    problem = JSON.parse(content);
  } catch {
    // A proxy's page, not the gateway's answer.
  }
  return new ApiError({
    status: reply.status,
    name: problem.name ?? 'no_problem',
    detail: problem.detail ?? `The gateway answered with status ${reply.status}.`,
    field: problem.field ?? null,
    retryAfter: problem.retry_after ?? null,
    details: problem.details ?? {},
  });
}

function observed(error) {
  observers.forEach((observer) => observer(error));
  return error;
}

/** Return a name as one segment of a path. */
export const segment = (name) => encodeURIComponent(name);

export const api = {
  get: (path, query, options) => request('GET', path, { query, ...options }),
  post: (path, body, options) => request('POST', path, { body, ...options }),
  put: (path, body, options) => request('PUT', path, { body, ...options }),
  patch: (path, body, options) => request('PATCH', path, { body, ...options }),
  delete: (path, options) => request('DELETE', path, options),
};
