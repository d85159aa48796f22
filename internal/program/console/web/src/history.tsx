// The history of an object: who changed what, what it was then, what differs between two revisions, and the way back.

import { useEffect, useMemo, useState } from 'preact/hooks';
import { get, isObjectWithMetadata, type Obj, post, query, Refused, type Resource } from './api';
import { managerOf, nameOf } from './apply';
import type { Described } from './copyas';
import { CopyAs } from './copymenu';
import { changes, written } from './diff';
import { type Difference, Differences } from './differences';
import { type Kind, resourceOf } from './discovery';
import { textOf } from './document';
import { isSecretKind } from './edit';
import { covered } from './secret';
import { age } from './table';
import { editable } from './values';
import { Dialog, Loading, Problem, useApp, useLoaded, useMay, useNow } from './widgets';
import { wanted } from './rights';

interface Revision {
  revision: string;
  time?: string;
  operation: string;
  user: string;
  managers: string[] | null;
  subresource: string;
  changes: Difference[] | null;
  more: boolean;
}
interface Page {
  items: Revision[] | null;
  since?: { revision: string; time?: string };
  before?: string;
}

function pathOf(kind: Kind, namespace: string, name: string, parameters: Parameters<typeof query>[0] = {}): string {
  const parts = [kind.group || 'core', kind.version, ...(kind.namespaced && namespace ? ['namespaces', namespace] : []), kind.resource, name];
  return '/history/' + parts.map(encodeURIComponent).join('/') + query(parameters);
}

// describe is a request about the history of an object, as it is sent and as the plugin of kubectl has it.
export function describe(kind: Kind, namespace: string, name: string, verb: string, flags: string[], query: [string, string][], body?: object): Described {
  const type = resourceOf(kind);
  const words = ['annex', verb, `${type}/${name}`, ...(kind.namespaced ? [`--namespace=${namespace}`] : []), ...flags];
  return { method: body ? 'POST' : 'GET', path: pathOf(kind, namespace, name), query, words, ...(body ? { body } : {}) };
}

// useHistory says whether the server has a history of the object that the user may read.
export function useHistory(kind: Kind, namespace: string, name: string): boolean {
  const probe = useLoaded((signal) => get<Page>(pathOf(kind, namespace, name, { limit: 1 }), { signal }), [kind, namespace, name]);
  return !!probe.value;
}

type Step = { what: 'undo' | 'restore'; revision: string };

// History shows the revisions of an object, which is undefined after its deletion: then every revision can be restored.
export function History({ kind, namespace, name, object, put }: { kind: Kind; namespace: string; name: string; object?: Resource; put: (o: Resource) => void }) {
  const [items, setItems] = useState<Revision[]>([]);
  const [last, setLast] = useState<Page>();
  const [error, setError] = useState<unknown>();
  const [round, setRound] = useState(0);
  const [seen, setSeen] = useState<string>();
  const [step, setStep] = useState<Step>();
  const [from, setFrom] = useState('');
  const [to, setTo] = useState('');
  const [compared, setCompared] = useState<[string, string]>();
  const mayUpdate = useMay(kind.verbs.includes('update') ? wanted(kind, 'update', namespace, name) : undefined);
  const mayCreate = useMay(kind.verbs.includes('create') ? wanted(kind, 'create', namespace) : undefined);
  const now = useNow(5000);
  const secret = isSecretKind(kind);
  const read = async (before: string | undefined, signal?: AbortSignal) => {
    try {
      const page = await get<Page>(pathOf(kind, namespace, name, { limit: 50, before }), signal ? { signal } : {});
      setItems((old) => (before ? [...old, ...(page.items ?? [])] : (page.items ?? [])));
      setLast(page);
      setError(undefined);
    } catch (failure) {
      if (!signal?.aborted) setError(failure);
    }
  };
  // It is read anew when the object has changed.
  useEffect(() => {
    const ending = new AbortController();
    void read(undefined, ending.signal);
    return () => ending.abort();
  }, [kind, namespace, name, object?.metadata.resourceVersion, round]);
  if (!last) return error ? <Problem error={error} title="No history" /> : <Loading what="the history" />;
  return (
    <>
      <Problem error={error} title="The history was not read" />
      <form
        class="tools"
        onSubmit={(e) => {
          e.preventDefault();
          if (from && to) setCompared([from, to]);
        }}
      >
        <span class="quiet">
          {last.since ? `Kept since ${last.since.time ? new Date(last.since.time).toLocaleString() : `revision ${last.since.revision}`}.` : ''}
        </span>
        <label>
          Compare{' '}
          <select value={from} onChange={(e) => setFrom(e.currentTarget.value)}>
            <option value="">a revision</option>
            {items.map((i) => (
              <option value={i.revision}>{i.revision}</option>
            ))}
          </select>
        </label>
        <label>
          with{' '}
          <select value={to} onChange={(e) => setTo(e.currentTarget.value)}>
            <option value="">a revision</option>
            {items.map((i) => (
              <option value={i.revision}>{i.revision}</option>
            ))}
          </select>
        </label>
        <button type="submit" disabled={!from || !to || from === to}>
          Compare
        </button>
        <button type="button" onClick={() => setRound((r) => r + 1)}>
          Read again
        </button>
      </form>
      {items.length === 0 && <p class="empty">There is no change of it in the history.</p>}
      <ol class="history">
        {items.map((i, n) => (
          <li key={i.revision}>
            <div class="history-head">
              <strong>{i.user || 'somebody'}</strong> {operationOf(i)}{' '}
              <span class="quiet" title={i.time}>
                {i.time ? `${age(i.time, now)} ago` : ''}, revision {i.revision}
                {(i.managers ?? []).length > 0 && `, as ${(i.managers ?? []).map(nameOf).join(', ')}`}
              </span>
              <span class="gap" />
              <button type="button" class="small" aria-label={`Show revision ${i.revision}`} onClick={() => setSeen(i.revision)}>
                Show
              </button>
              {mayUpdate && object && i.operation !== 'create' && (
                <button type="button" class="small" aria-label={`Undo revision ${i.revision}`} onClick={() => setStep({ what: 'undo', revision: i.revision })}>
                  Undo
                </button>
              )}
              {mayUpdate && (object ? n > 0 && i.operation !== 'delete' : mayCreate) && (
                <button type="button" class="small" aria-label={`Restore revision ${i.revision}`} onClick={() => setStep({ what: 'restore', revision: i.revision })}>
                  Restore
                </button>
              )}
            </div>
            {i.operation !== 'create' && (i.changes ?? []).length > 0 && <Differences all={plain(i.changes)} secret={secret} />}
            {i.more && <p class="quiet">There are more changes: compare the revision with the one before.</p>}
          </li>
        ))}
      </ol>
      {last.before && (
        <button type="button" onClick={() => void read(last.before)}>
          Show older revisions
        </button>
      )}
      {seen && <Seen kind={kind} namespace={namespace} name={name} revision={seen} close={() => setSeen(undefined)} />}
      {compared && <Compared kind={kind} namespace={namespace} name={name} revisions={compared} close={() => setCompared(undefined)} />}
      {step && (
        <Back
          kind={kind}
          namespace={namespace}
          name={name}
          step={step}
          {...(object ? { object } : {})}
          close={(changed) => {
            setStep(undefined);
            if (changed) put(changed);
          }}
        />
      )}
    </>
  );
}

function operationOf(i: Revision): string {
  const of = i.subresource ? ` its ${i.subresource}` : ' it';
  return ({ create: 'created', update: 'changed', patch: 'changed', apply: 'applied', delete: 'deleted' }[i.operation] ?? i.operation) + of;
}

// plain takes away what every write changes, and the dot before paths.
function plain(all: Difference[] | null): Difference[] {
  return (all ?? []).map((d) => ({ ...d, path: d.path.replace(/^\./, '') })).filter((d) => !/^metadata\.(resourceVersion|managedFields|generation)\b/.test(d.path));
}

function Seen({ kind, namespace, name, revision, close }: { kind: Kind; namespace: string; name: string; revision: string; close: () => void }) {
  const read = useLoaded((signal) => get<Obj>(pathOf(kind, namespace, name, { at: revision }), { signal }), [revision]);
  return (
    <Dialog title={`${name} at revision ${revision}`} close={close} wide>
      <Problem error={read.error} />
      {read.value ? (
        <pre class="source" tabIndex={0}>
          {textOf(isSecretKind(kind) ? covered(read.value) : editable(read.value as unknown as Resource))}
        </pre>
      ) : (
        !read.error && <Loading what="the object" />
      )}
      <div class="buttons">
        <CopyAs describe={() => describe(kind, namespace, name, 'get', [`--at=${revision}`], [['at', revision]])} />
        <button type="button" autofocus onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function Compared({ kind, namespace, name, revisions: [from, to], close }: { kind: Kind; namespace: string; name: string; revisions: [string, string]; close: () => void }) {
  const read = useLoaded((signal) => get<{ changes: Difference[] | null }>(pathOf(kind, namespace, name, { from, to }), { signal }), [from, to]);
  const all = plain(read.value?.changes ?? []);
  return (
    <Dialog title={`From revision ${from} to ${to}`} close={close} wide>
      <Problem error={read.error} />
      {read.value ? all.length > 0 ? <Differences all={all} secret={isSecretKind(kind)} /> : <p>Nothing differs.</p> : !read.error && <Loading what="the difference" />}
      <div class="buttons">
        <CopyAs describe={() => describe(kind, namespace, name, 'diff', [`--from=${from}`, `--to=${to}`], [['from', from], ['to', to]])} />
        <button type="button" autofocus onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

// Back shows what an undo or a restore would do before it is done.
function Back({ kind, namespace, name, step, object, close }: { kind: Kind; namespace: string; name: string; step: Step; object?: Resource; close: (changed?: Resource) => void }) {
  const { say, session } = useApp();
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState<unknown>();
  const path = useMemo(() => pathOf(kind, namespace, name, { fieldManager: managerOf(session.user.username) }), [kind, namespace, name, session]);
  const order = (dryRun: boolean) => post<Resource>(path, { [step.what]: step.revision, dryRun });
  const tried = useLoaded(() => order(true), [path, step]);
  const all = useMemo(() => (isObjectWithMetadata(tried.value) ? changes(object ? editable(object) : {}, editable(tried.value)).map((c) => ({ path: written(c.path), from: c.from, to: c.to })) : []), [tried.value, object]);
  const carryOut = async () => {
    setBusy(true);
    setFailed(undefined);
    try {
      const changed = await order(false);
      say(step.what === 'undo' ? `Revision ${step.revision} was undone.` : `${name} is as it was in revision ${step.revision}.`);
      close(isObjectWithMetadata(changed) ? changed : undefined);
    } catch (failure) {
      setFailed(failure);
      setBusy(false);
    }
  };
  const error = failed ?? tried.error;
  return (
    <Dialog title={step.what === 'undo' ? `Undo revision ${step.revision}` : `Restore revision ${step.revision}`} close={() => close()} wide>
      <Problem error={error} title={error instanceof Refused && error.code === 409 ? 'It has been changed since' : 'Refused'} />
      {tried.value ? all.length > 0 ? <Differences all={all} secret={isSecretKind(kind)} /> : <p>Nothing would change.</p> : !tried.error && <Loading what="what would change" />}
      <div class="buttons">
        <CopyAs
          describe={() => {
            const point = step.what === 'undo' ? `--revision=${step.revision}` : `--at=${step.revision}`;
            return describe(kind, namespace, name, step.what, [point], [['fieldManager', managerOf(session.user.username)]], { [step.what]: step.revision });
          }}
        />
        <button type="button" onClick={() => close()}>
          Cancel
        </button>
        <button type="button" class="primary" disabled={busy || !tried.value || all.length === 0} onClick={() => void carryOut()}>
          {step.what === 'undo' ? 'Undo' : 'Restore'}
        </button>
      </div>
    </Dialog>
  );
}
