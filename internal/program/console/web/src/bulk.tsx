// Deletes and labels many objects, with progress, and an error for each object that is refused.

import { useRef, useState } from 'preact/hooks';
import { type Meta, pause, reasonOf, Refused, request } from './api';
import { managerOf } from './apply';
import type { Described } from './copyas';
import { CopyAs } from './copymenu';
import { type Kind, pathOf } from './discovery';
import { type Asked, pagesOf } from './querying';
import { keyOf } from './table';
import { Dialog, Field, Problem, useApp } from './widgets';

export const mostInBulk = 50_000;
const atOnce = 6;

// Targets are objects that are named, or all that a query selects.
export type Targets = { metas: Meta[] } | { asked: Asked; total: number };

export function countOfTargets(targets: Targets): number {
  return 'metas' in targets ? targets.metas.length : Math.min(targets.total, mostInBulk);
}

// overAll calls one for each target, a few at a time, and waits when the server asks for it.
async function overAll(metas: Meta[], signal: AbortSignal, one: (meta: Meta) => Promise<void>, done: (meta: Meta, error?: unknown) => void): Promise<void> {
  const queue = metas.values();
  const work = async () => {
    for (const meta of queue) {
      if (signal.aborted) return;
      for (let round = 1; ; round++) {
        try {
          await one(meta);
          done(meta);
        } catch (error) {
          if (error instanceof Refused && error.code === 429 && round < 8 && !signal.aborted) {
            await pause(500 * round, signal);
            continue;
          }
          done(meta, error);
        }
        break;
      }
    }
  };
  await Promise.all(Array.from({ length: atOnce }, work));
}

interface Progress {
  done: number;
  total: number;
  failed: { name: string; reason: string }[];
  ended: boolean;
}

export function Bulk({ kind, namespace, what, targets, close, changed }: { kind: Kind; namespace: string; what: 'delete' | 'label'; targets: Targets; close: () => void; changed: () => void }) {
  const { config, session } = useApp();
  const [label, setLabel] = useState('');
  const [value, setValue] = useState('');
  const [taken, setTaken] = useState(false);
  const [policy, setPolicy] = useState('');
  const [progress, setProgress] = useState<Progress | undefined>();
  const [error, setError] = useState<unknown>();
  const ending = useRef(new AbortController());
  const count = countOfTargets(targets);
  const some = `${count.toLocaleString('en')} ${count === 1 ? kind.kind : kind.resource}`;
  const manager = managerOf(session.user.username);
  const labelled = (m: Meta) => ({ metadata: { uid: m.uid, labels: { [label.trim()]: taken ? null : value.trim() } } });
  const example = 'metas' in targets ? targets.metas[0] : undefined;
  const describe = (m: Meta): Described => {
    const of = { kind, namespace: m.namespace ?? '', name: m.name };
    if (what === 'label')
      return { method: 'PATCH', path: pathOf(kind, m.namespace, m.name), query: [['fieldManager', manager]], contentType: 'application/merge-patch+json', body: labelled(m), of: { ...of, verb: 'patch' } };
    return { method: 'DELETE', path: pathOf(kind, m.namespace, m.name), query: policy ? [['propagationPolicy', policy]] : [], of: { ...of, verb: 'delete' } };
  };
  const run = async () => {
    const signal = ending.current.signal;
    setError(undefined);
    const now: Progress = { done: 0, total: count, failed: [], ended: false };
    const draw = () => setProgress({ ...now });
    draw();
    try {
      let metas: Meta[] = [];
      if ('metas' in targets) metas = targets.metas;
      else
        for await (const page of pagesOf(config.query!, kind, namespace, { ...targets.asked, sortBy: '', ascending: true }, { limit: 1000, fields: 'metadata.name' }, mostInBulk, signal))
          metas.push(...page.items.map((i) => i.metadata));
      now.total = metas.length;
      const one = async (m: Meta) => {
        const path = pathOf(kind, m.namespace, m.name, undefined, what === 'label' ? { fieldManager: manager } : {});
        if (what === 'label') {
          await request(path, { method: 'PATCH', contentType: 'application/merge-patch+json', body: labelled(m) });
          return;
        }
        try {
          await request(path, { method: 'DELETE', body: { apiVersion: 'v1', kind: 'DeleteOptions', ...(policy ? { propagationPolicy: policy } : {}), preconditions: { uid: m.uid } } });
        } catch (failure) {
          if (!(failure instanceof Refused && failure.code === 404)) throw failure;
        }
      };
      await overAll(metas, signal, one, (m, failure) => {
        now.done++;
        if (failure) now.failed.push({ name: keyOf(m).replace(/^\//, ''), reason: reasonOf(failure) });
        if (now.done % 10 === 0) draw();
      });
    } catch (failure) {
      if (!signal.aborted) setError(failure);
    }
    now.ended = true;
    draw();
    changed();
  };
  const leave = () => {
    ending.current.abort();
    close();
  };
  return (
    <Dialog title={what === 'delete' ? `Delete ${some}?` : `Label ${some}`} close={leave}>
      <Problem error={error} title="Not carried out" />
      {!progress && 'total' in targets && targets.total > mostInBulk && <p>The filter selects {targets.total.toLocaleString('en')}; the first {mostInBulk.toLocaleString('en')} are changed.</p>}
      {!progress && what === 'delete' && (
        <Field label="What they own">
          {(id) => (
            <select id={id} value={policy} onChange={(e) => setPolicy(e.currentTarget.value)}>
              <option value="">as the kind has it</option>
              <option value="Background">is deleted after them</option>
              <option value="Foreground">is deleted before them</option>
              <option value="Orphan">stays, without an owner</option>
            </select>
          )}
        </Field>
      )}
      {!progress && what === 'label' && (
        <>
          <Field label="Label">{(id) => <input id={id} value={label} placeholder="team" onInput={(e) => setLabel(e.currentTarget.value)} />}</Field>
          {!taken && <Field label="Value">{(id) => <input id={id} value={value} onInput={(e) => setValue(e.currentTarget.value)} />}</Field>}
          <label class="check">
            <input type="checkbox" checked={taken} onChange={(e) => setTaken(e.currentTarget.checked)} /> take the label away
          </label>
        </>
      )}
      {progress && (
        <>
          <p role="status">
            {progress.ended ? `${(progress.done - progress.failed.length).toLocaleString('en')} of ${progress.total.toLocaleString('en')} ${what === 'delete' ? 'deleted' : 'labelled'}` : `${progress.done.toLocaleString('en')} of ${progress.total.toLocaleString('en')}`}
            {progress.failed.length > 0 && `, ${progress.failed.length} refused`}
          </p>
          <progress aria-label="Progress" max={Math.max(1, progress.total)} value={progress.done} />
          {progress.failed.length > 0 && (
            <ul class="causes" tabIndex={0} aria-label="Refused">
              {progress.failed.slice(0, 100).map((f) => (
                <li>
                  <code>{f.name}</code> {f.reason}
                </li>
              ))}
              {progress.failed.length > 100 && <li>and {progress.failed.length - 100} more</li>}
            </ul>
          )}
        </>
      )}
      <div class="buttons">
        {!progress && example && (what === 'delete' || label.trim()) && (
          <CopyAs describe={() => describe(example)} note={count > 1 ? `This is the first of ${count.toLocaleString('en')} requests: one for each object.` : undefined} />
        )}
        <button type="button" onClick={leave} autofocus>
          {progress?.ended ? 'Close' : progress ? 'Stop' : 'Cancel'}
        </button>
        {!progress && (
          <button type="button" class={what === 'delete' ? 'danger' : 'primary'} disabled={count === 0 || (what === 'label' && !label.trim())} onClick={() => void run()}>
            {what === 'delete' ? `Delete ${some}` : `${taken ? 'Take away' : 'Set'} for ${some}`}
          </button>
        )}
      </div>
    </Dialog>
  );
}
