// Edits that are not saved yet. They outlive the page that they are made on, a reload, and the login: each is kept
// in the tab, for its object and user.

import { type Obj } from './api';
import { type Kind } from './discovery';

export interface Draft {
  text: string;
  object?: Obj; // if the text has not followed it
  mode: 'form' | 'yaml';
  time: number;
  // The object as it was when the edit began; a new object has none.
  base?: Obj;
  uid?: string;
}

const prefix = 'annex.draft.';
// Drafts that are not written to the session's storage: those of Secrets, and what it has no room for. They
// survive everything but a reload.
let unwritten = new Map<string, Draft>();

export function draftKey(user: string, kind: Kind, namespace: string, name: string): string {
  return prefix + [user, kind.group || 'core', kind.resource, namespace, name].map(encodeURIComponent).join('/');
}

export function draftAt(key: string): Draft | undefined {
  const held = unwritten.get(key);
  if (held) return held;
  try {
    const draft = JSON.parse(sessionStorage.getItem(key) ?? 'null') as Draft | null;
    return draft && typeof draft.text === 'string' ? draft : undefined;
  } catch {
    return undefined;
  }
}

export function hasDraft(key: string): boolean {
  return unwritten.has(key) || sessionStorage.getItem(key) !== null;
}

// keepDraft answers whether the draft survives a reload.
export function keepDraft(key: string, draft: Draft, secret: boolean): boolean {
  if (!secret) {
    try {
      sessionStorage.setItem(key, JSON.stringify(draft));
      unwritten.delete(key);
      return true;
    } catch {
      sessionStorage.removeItem(key); // an older one would come back
    }
  }
  unwritten.set(key, draft);
  return false;
}

export function dropDraft(key: string): void {
  unwritten.delete(key);
  sessionStorage.removeItem(key);
}

// forgetDrafts ends those of all users: who signs out leaves nothing.
export function forgetDrafts(): void {
  unwritten = new Map();
  for (const key of Object.keys(sessionStorage)) if (key.startsWith(prefix)) sessionStorage.removeItem(key);
}

addEventListener('beforeunload', (e) => {
  if (unwritten.size > 0) e.preventDefault();
});
