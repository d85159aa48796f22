// Where in the console one is, as the fragment of the address, so that the server needs one page only.

import { useEffect, useState } from 'preact/hooks';
import { type Kind } from './discovery';

export interface Place {
  path: string[];
  parameters: URLSearchParams;
}

export function parse(hash: string): Place {
  const [path = '', parameters = ''] = hash.replace(/^#\/?/, '').split('?', 2);
  const decode = (part: string) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  return { path: path.split('/').filter(Boolean).map(decode), parameters: new URLSearchParams(parameters) };
}

export type Parameters = Record<string, string | string[] | undefined>;

export function link(path: string[], parameters: Parameters = {}): string {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) for (const one of Array.isArray(value) ? value : [value]) if (one) q.append(name, one);
  const text = q.toString();
  return '#/' + path.map(encodeURIComponent).join('/') + (text && '?' + text);
}

// go changes the address. Back leads to the address before, unless the new one replaces it.
export function go(hash: string, replace = false): void {
  if (!replace) {
    location.hash = hash;
    return;
  }
  if (location.hash === hash) return;
  history.replaceState(null, '', hash);
  dispatchEvent(new HashChangeEvent('hashchange'));
}

export function usePlace(): Place {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener('hashchange', changed);
    changed(); // what came between the first rendering and now
    return () => removeEventListener('hashchange', changed);
  }, []);
  return parse(hash);
}

export const kindPath = (k: Kind) => [k.group || 'core', k.version, k.resource];

export function linkToKind(k: Kind, namespace: string, parameters: Parameters = {}): string {
  return link(['k', ...kindPath(k)], { ns: k.namespaced ? namespace : undefined, ...parameters });
}
export function linkToNew(k: Kind, namespace: string): string {
  return link(['new', ...kindPath(k)], { ns: k.namespaced ? namespace : undefined });
}
// A dash is no name of a namespace.
export function linkToObject(k: Kind, namespace: string | undefined, name: string, tab?: string): string {
  return link(['o', ...kindPath(k), namespace || '-', name, ...(tab ? [tab] : [])]);
}
