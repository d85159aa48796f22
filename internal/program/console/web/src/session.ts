// Who is signed in, and by what: a session of the login, a token, or a certificate of the browser.

import { get, post, Refused, request, setToken } from './api';
import { forgetDrafts } from './drafts';
import { forgetSchemas } from './openapi';
import { forget } from './rights';

export interface Config {
  title: string;
  logo?: string;
  version: string;
  query?: string;
  swagger?: string;
  console?: string;
  login?: { password?: boolean; providers?: { name: string; title?: string }[] };
  clientCertificate?: boolean;
  requests?: string;
  link?: string; // the command that makes a sign-in link
}
export interface User {
  username: string;
  groups: string[];
}
export type Means = 'session' | 'token' | 'certificate';
export interface Session {
  user: User;
  means: Means;
}

const kept = 'annex.token';

export function config(): Promise<Config> {
  return get<Config>('config.json');
}

// whoami asks the server who it takes this page for; undefined if it does not know the caller.
async function whoami(): Promise<User | undefined> {
  try {
    const review = await post<{ status: { userInfo: { username?: string; groups?: string[] } } }>(
      '/apis/authentication.k8s.io/v1/selfsubjectreviews',
      { apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview' },
      { probe: true },
    );
    const { username, groups } = review.status.userInfo;
    return !username || username === 'system:anonymous' ? undefined : { username, groups: groups ?? [] };
  } catch (error) {
    if (error instanceof Refused && (error.code === 401 || error.code === 403)) return undefined;
    throw error;
  }
}

interface Issued {
  access_token: string;
  expires_in: number;
}

// fromSession asks for a token by the cookie of the login, which is good for nothing else.
async function fromSession(): Promise<boolean> {
  try {
    const issued = await post<Issued>('/oauth/session/token', {}, { anonymous: true, headers: { 'X-Annex-Session': '1' } });
    // Before it expires it is renewed when the server says 401: no timer runs while the page is not used.
    setToken(issued.access_token, fromSession);
    return true;
  } catch (error) {
    // A server that cannot read its sessions now has not ended them.
    if (error instanceof Refused && error.code < 500 && error.code !== 429) return false;
    throw error;
  }
}

// resume finds a session that is there already.
export async function resume(c: Config): Promise<Session | undefined> {
  const stored = sessionStorage.getItem(kept);
  if (stored) {
    setToken(stored);
    const user = await whoami();
    if (user) return { user, means: 'token' };
    sessionStorage.removeItem(kept);
  }
  setToken('');
  if ((c.login || c.link) && (await fromSession())) {
    const user = await whoami();
    if (user) return { user, means: 'session' };
  }
  setToken('');
  return undefined;
}

// again looks, while the page asks for another sign-in, whether another tab has signed in.
export async function again(): Promise<Session | undefined> {
  if (!(await fromSession())) return undefined;
  const user = await whoami();
  return user && { user, means: 'session' };
}

const linked = '#/sign-in/';

// takeLink returns the secret of a sign-in link, which it removes from the address.
export function takeLink(): string | undefined {
  if (!location.hash.startsWith(linked)) return undefined;
  const secret = decodeURIComponent(location.hash.slice(linked.length));
  history.replaceState(null, '', '#/');
  return secret;
}

// byLink signs in by a link, which works once.
export async function byLink(link: string): Promise<Session> {
  setToken('');
  sessionStorage.removeItem(kept);
  await request('/oauth/session/link', { method: 'POST', anonymous: true, body: { link }, headers: { 'X-Annex-Session': '1' } });
  if (!(await fromSession())) throw new Error('the server has made a session but gives no token for it');
  return found('session', 'the server does not know the token that it has just made');
}

const left = 'annex.place';

// leave keeps the place while another site signs the user in; comeBack returns to it.
export function leave(): void {
  sessionStorage.setItem(left, location.hash);
}
export function comeBack(): void {
  const place = sessionStorage.getItem(left);
  sessionStorage.removeItem(left);
  if (place && (!location.hash || location.hash === '#/')) history.replaceState(null, '', place);
}

export async function byPassword(username: string, password: string): Promise<Session> {
  setToken('');
  await request('/oauth/session', { method: 'POST', anonymous: true, body: { username, password } });
  if (!(await fromSession())) throw new Error('the server has made a session but gives no token for it');
  return found('session', 'the server does not know the token that it has just made');
}

// byToken signs in with a token, which is kept until the tab is closed if it is to survive a reload.
export async function byToken(token: string, keep: boolean): Promise<Session> {
  setToken(token);
  const session = await found('token', 'the server does not accept this token');
  if (keep) sessionStorage.setItem(kept, token);
  return session;
}

export async function byCertificate(): Promise<Session> {
  setToken('');
  return found('certificate', 'the browser has shown no certificate that the server accepts');
}

async function found(means: Means, otherwise: string): Promise<Session> {
  let user: User | undefined;
  try {
    user = await whoami();
  } catch (error) {
    setToken('');
    throw error;
  }
  if (user) return { user, means };
  setToken('');
  throw new Error(otherwise);
}

export async function signOut(session: Session): Promise<void> {
  setToken('');
  sessionStorage.removeItem(kept);
  forget();
  forgetDrafts();
  forgetSchemas();
  if (session.means === 'session') await request('/oauth/session', { method: 'DELETE', anonymous: true, headers: { 'X-Annex-Session': '1' } }).catch(() => {});
}
