// Keys without a modifier, which are the page's only while nothing is typed into.

import { useEffect, useRef } from 'preact/hooks';

export type Keys = Record<string, (event: KeyboardEvent) => void>;

const off = 'annex.keys';

export function keysAreOn(): boolean {
  return localStorage.getItem(off) !== 'off';
}
export function turnKeys(on: boolean): void {
  localStorage.setItem(off, on ? 'on' : 'off');
}

// typing reports whether an element takes keys itself.
export function typing(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest('input:not([type="checkbox"]), textarea, select, [contenteditable="true"], [role="textbox"], .xterm, .cm-editor') !== null;
}

// useKeys handles keys while a view is shown; Ctrl+K, or Command+K, is the name of that key with either.
export function useKeys(keys: Keys): void {
  const now = useRef(keys);
  now.current = keys;
  useEffect(() => {
    const pressed = (e: KeyboardEvent) => {
      if (e.defaultPrevented || typing(e.target) || document.querySelector('dialog[open]')) return;
      const modified = e.ctrlKey || e.metaKey;
      if (e.altKey || (!modified && !keysAreOn())) return;
      const run = now.current[modified ? `Ctrl+${e.key.toLowerCase()}` : e.key];
      if (!run) return;
      e.preventDefault();
      run(e);
    };
    addEventListener('keydown', pressed);
    return () => removeEventListener('keydown', pressed);
  }, []);
}
