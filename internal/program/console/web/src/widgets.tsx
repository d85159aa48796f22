// Small parts that all views are made of.

import { type ComponentChildren, createContext } from 'preact';
import { useContext, useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { type Cause, reasonOf, Refused } from './api';
import { type Kind } from './discovery';
import { type Config, type Session } from './session';
import { may, type Wanted } from './rights';

export interface App {
  config: Config;
  session: Session;
  kinds: Kind[];
  namespace: string;
  say: (text: string) => void;
}
export const AppContext = createContext<App | undefined>(undefined);
export function useApp(): App {
  const app = useContext(AppContext);
  if (!app) throw new Error('the user is not signed in');
  return app;
}

// useMay says whether the user may, and false until that is known.
export function useMay(wanted: Wanted | undefined): boolean {
  const key = JSON.stringify(wanted);
  const [answer, setAnswer] = useState({ key: '', allowed: false });
  useEffect(() => {
    let wantedStill = true;
    if (wanted) void may(wanted).then((allowed) => wantedStill && setAnswer({ key, allowed }));
    return () => void (wantedStill = false);
  }, [key]);
  return answer.key === key && answer.allowed;
}

// useTask runs something for as long as its inputs are the same; the signal ends it.
export function useTask(run: (signal: AbortSignal) => Promise<void> | void, inputs: unknown[]): void {
  useEffect(() => {
    const ending = new AbortController();
    void (async () => run(ending.signal))().catch(() => {});
    return () => ending.abort();
  }, inputs);
}

// useLoaded reads something when its inputs change.
export function useLoaded<T>(load: (signal: AbortSignal) => Promise<T>, inputs: unknown[]): { value?: T; error?: unknown; reload: () => void } {
  const [result, setResult] = useState<{ value?: T; error?: unknown }>({});
  const [round, setRound] = useState(0);
  useEffect(() => {
    const ending = new AbortController();
    setResult({});
    load(ending.signal).then(
      (value) => !ending.signal.aborted && setResult({ value }),
      (error: unknown) => !ending.signal.aborted && setResult({ error }),
    );
    return () => ending.abort();
  }, [...inputs, round]);
  return { ...result, reload: () => setRound((r) => r + 1) };
}

export function useNow(every: number): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

export function Problem({ error, title }: { error: unknown; title?: string }) {
  if (!error) return null;
  const causes: Cause[] = error instanceof Refused ? error.causes : [];
  return (
    <div class="problem" role="alert">
      <strong>{title ?? (error instanceof Refused ? `${error.status.reason ?? 'Refused'} (${error.code})` : 'Failed')}</strong>
      <p>{reasonOf(error)}</p>
      {causes.length > 1 && (
        <ul>
          {causes.map((c) => (
            <li>
              <code>{c.field}</code> {c.message}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

export function Version({ config }: { config: Config }) {
  return config.version === 'unversioned' ? null : <p class="quiet">{config.version}</p>;
}

export function Loading({ what }: { what: string }) {
  return (
    <p class="quiet" role="status">
      Loading {what} …
    </p>
  );
}

// Dialog is the browser's own, which keeps the keyboard inside and closes at Escape.
export function Dialog({ title, children, close, wide }: { title: string; children: ComponentChildren; close: () => void; wide?: boolean }) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  // Before it is painted: a key that is pressed at once is the dialog's.
  useLayoutEffect(() => {
    const dialog = ref.current;
    if (dialog && !dialog.open) dialog.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog ref={ref} class={wide ? 'wide' : ''} aria-labelledby={id} onCancel={(e) => (e.preventDefault(), close())}>
      <h2 id={id}>{title}</h2>
      {children}
    </dialog>
  );
}

export function Field({ label, hint, children }: { label: string; hint?: string; children: (id: string) => ComponentChildren }) {
  const id = useId();
  return (
    <div class="labelled">
      <label for={id}>{label}</label>
      {children(id)}
      {hint && <p class="hint">{hint}</p>}
    </div>
  );
}
